"""Measure attention, training steps and preprocessing, each beside its alternatives."""

import nystromformer.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path

import typer

from nystromformer import cli
from nystromformer.benchmark import flags
from nystromformer.flags import DatasetFolder, DeviceName, ModelFolder, Overrides, command_line, refuse_given
from nystromformer.paths import EXPERIMENTS

FOLDER = Path("results/tmp")


def efficiency(
    context: typer.Context,
    attention: flags.AttentionsFlag = (),
    peers: flags.PeersFlag = False,
    lengths: flags.LengthsFlag = "512,1024,2048,4096,8192,16384",
    batch: flags.SequencesFlag = 1,
    heads: flags.HeadsFlag = 12,
    head_dim: flags.HeadDimFlag = 64,
    repeats: flags.AttentionRepeatsFlag = 9,
    threads: flags.ThreadsFlag = 2,
    parts: flags.PartsFlag = "attention,encoder",
    encoder_lengths: flags.EncoderLengthsFlag = "1024,2048,3072,4096",
    encoder_batch: flags.EncoderBatchFlag = 8,
    encoder_layers: flags.EncoderLayersFlag = 2,
    encoder_heads: flags.EncoderHeadsFlag = 2,
    encoder_width: flags.EncoderWidthFlag = 64,
    budget: flags.BudgetFlag = 1800.0,
    out: flags.OutFlag = FOLDER,
) -> None:
    """Time and memory of every attention over the length, alone and in a small encoder, beside softmax."""
    sizes = {"batch": batch, "head_dim": head_dim, "repeats": repeats, "threads": threads}
    sizes |= {"lengths": flags.numbers(lengths, "--lengths")}
    if peers:
        from nystromformer.benchmark.attention_report import chosen_attention, measure_beside_peers

        refuse_given(context, flags.NOT_BESIDE_PEERS, "--peers: the attention alone is measured, at every length")
        compared = chosen_attention(attention, num_heads=heads, **sizes)
        typer.echo(measure_beside_peers(compared, out, command_line()))
        return
    from nystromformer.benchmark.efficiency.command import Efficiency, measure_efficiency

    settings = Efficiency(
        attentions=tuple(attention),
        parts=tuple(dict.fromkeys(parts.split(","))),
        heads=heads,
        encoder_lengths=flags.numbers(encoder_lengths, "--encoder_lengths"),
        encoder_batch=encoder_batch,
        encoder_layers=encoder_layers,
        encoder_heads=encoder_heads,
        encoder_width=encoder_width,
        budget=budget,
        **sizes,
    )
    typer.echo(measure_efficiency(settings, out, command_line()))


def approximation(
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    checkpoint: flags.CheckpointFlag = "last",
    attention: flags.AttentionsFlag = (),
    parts: flags.ApproximationPartsFlag = "errors,maps,loss",
    rows: flags.RowsFlag = 8,
    landmarks: flags.LandmarkCountsFlag = "8,16,32,64,128,256",
    iterations: flags.IterationCountsFlag = "1,2,3,4,5,6,7,8,9,10,11,12",
    ridges: flags.RidgesFlag = "0.01,0.001,0.0001,0.00001",
    score_rows: flags.ScoreRowsFlag = 256,
    adapt: flags.AdaptFlag = 200,
    repeats: flags.AttentionRepeatsFlag = 9,
    threads: flags.ThreadsFlag = 2,
    device: DeviceName = "auto",
    overrides: Overrides = None,
    out: flags.OutFlag = FOLDER,
) -> None:
    """How far attentions are from softmax on a checkpoint's queries and keys, and what that costs its loss."""
    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    from nystromformer.benchmark.approximation.command import Approximation, measure_approximation
    from nystromformer.tasks.experiment.door import run_device
    from nystromformer.training import Group

    settings = Approximation(
        tuple(attention),
        tuple(parts.split(",")),
        rows,
        flags.numbers(landmarks, "--landmarks"),
        flags.numbers(iterations, "--iterations"),
        flags.fractions(ridges, "--ridges"),
        score_rows,
        adapt,
        repeats,
        threads,
    )
    chosen = run_device(experiment, device, Group())
    typer.echo(measure_approximation(experiment, dataset, chosen, checkpoint, settings, out, command_line()))


def span(
    model: flags.ModelsFlag = (),
    run: flags.RunsFlag = (),
    dataset: DatasetFolder = None,
    glue: flags.TaskGlueFlag = None,
    imdb: flags.TaskImdbFlag = None,
    wikihop: flags.TaskWikihopFlag = None,
    lra: flags.TaskLraFlag = None,
    checkpoint: flags.CheckpointFlag = "last",
    rows: flags.SpanRowsFlag = 1000,
    device: DeviceName = "auto",
    out: flags.OutFlag = FOLDER,
) -> None:
    """How far trained models attend: the mean distance to attended tokens, pretrained and fine-tuned."""
    from nystromformer.benchmark.span.command import measure_spans
    from nystromformer.training import choose_device

    data = {"glue": glue, "imdb": imdb, "wikihop": wikihop, "lra": lra}
    chosen = choose_device(device, mixed_precision=False)
    typer.echo(measure_spans(model, run, dataset, checkpoint, data, rows, chosen, out, command_line()))


def abilities(
    task: flags.TasksFlag = (),
    attention: flags.AbilityAttentionsFlag = (),
    length: flags.TaskLengthsFlag = "128",
    pairs: flags.PairsFlag = "",
    conv_kernel_size: flags.TapsFlag = "0",
    seeds: flags.SeedsFlag = 1,
    seconds: flags.SecondsFlag = 120.0,
    workers: flags.LearnersFlag = 2,
    out: flags.OutFlag = FOLDER,
) -> None:
    """Small tasks that softmax learns within minutes: which attention can look things up, shift, copy, find and count.

    Stopped and started again, it continues; another command with the same --out adds to its tables.
    """
    from nystromformer.benchmark.abilities.command import measure_abilities
    from nystromformer.benchmark.abilities.settings import Abilities

    settings = Abilities(
        tuple(task),
        tuple(attention),
        flags.numbers(length, "--length"),
        flags.numbers(pairs, "--pairs") if pairs else (),
        flags.numbers(conv_kernel_size, "--conv_kernel_size"),
        seeds,
        seconds,
    )
    typer.echo(measure_abilities(settings, workers, out, command_line()))


def pretrain(
    sizes: flags.SizesFlag = "512x8,4096x1",
    repeats: flags.StepRepeatsFlag = 7,
    threads: flags.ThreadsFlag = 2,
    layers: flags.LayersFlag = 4,
    width: flags.WidthFlag = 512,
    vocab_size: flags.VocabSizeFlag = 50265,
    precision: flags.PrecisionFlag = "float32",
    compiled: flags.CompiledFlag = False,
    out: flags.OutFlag = FOLDER,
) -> None:
    """Time and memory of a pretraining step of BERT-small, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.models import common_settings
    from nystromformer.benchmark.pretrain import PretrainBenchmark, measure_pretraining, parse_sizes

    common = common_settings(layers, width, vocab_size, precision, repeats, threads)
    settings = PretrainBenchmark(sizes=parse_sizes(sizes), compile=compiled, **common)
    typer.echo(measure_pretraining(settings, out))


def finetune(
    glue: flags.GlueFlag = None,
    tokenizer: flags.RobertaTokenizerFlag = None,
    batch: flags.ExamplesFlag = 32,
    pad_to: flags.PadToFlag = 512,
    batches: flags.BatchesFlag = 16,
    repeats: flags.FinetuneRepeatsFlag = 3,
    threads: flags.ThreadsFlag = 2,
    layers: flags.LayersFlag = 4,
    width: flags.WidthFlag = 512,
    vocab_size: flags.VocabSizeFlag = 50265,
    precision: flags.PrecisionFlag = "float32",
    out: flags.OutFlag = FOLDER,
) -> None:
    """Time and memory of fine-tuning on short texts: in batches by length, in padded ones, and by transformers."""
    from nystromformer.benchmark.finetune import FinetuneBenchmark, measure_finetuning
    from nystromformer.benchmark.models import common_settings

    common = common_settings(layers, width, vocab_size, precision, repeats, threads)
    settings = FinetuneBenchmark(glue=glue, tokenizer=tokenizer, batch=batch, pad_to=pad_to, batches=batches, **common)
    typer.echo(measure_finetuning(settings, out))


def lra(
    data: flags.ListOpsFlag = None,
    batches: flags.BatchesFlag = 8,
    repeats: flags.StepRepeatsFlag = 5,
    threads: flags.ThreadsFlag = 2,
    overrides: Overrides = None,
    out: flags.OutFlag = FOLDER,
) -> None:
    """A step of training on ListOps beside the same model with the authors' attention, and where its time goes."""
    from nystromformer.benchmark.lra import LraBenchmark, measure_lra

    recipe = EXPERIMENTS / "lra" / "listops" / "config.json"
    typer.echo(measure_lra(LraBenchmark(recipe, data, batches, repeats, threads, tuple(overrides or ())), out))


def preprocess(
    corpus: flags.CorpusFlag = None,
    tokenizer: flags.TokenizerFlag = None,
    megabytes: flags.MegabytesFlag = 64.0,
    length: flags.RowLengthFlag = 512,
    workers: flags.WorkersFlag = 2,
    repeats: flags.PreprocessRepeatsFlag = 3,
    out: flags.OutFlag = FOLDER,
) -> None:
    """Tokens a second of preprocessing text into training rows, beside those of the tokenizer alone."""
    from nystromformer.benchmark.preprocess import PreprocessBenchmark, measure_preprocessing

    settings = PreprocessBenchmark(corpus, tokenizer, megabytes, length, workers, repeats)
    typer.echo(measure_preprocessing(settings, out))


def gpu(
    sections: flags.SectionsFlag = "check,ceilings,kernels,attention,training",
    minutes: flags.MinutesFlag = 8.3,
    seed: flags.SeedFlag = None,
    dry_run: flags.DryRunFlag = False,
    out: flags.OutFlag = FOLDER,
) -> None:
    """The fused kernels on a GPU: are they right, how fast are they, and what do they bring in training.

    The exit status is 1 where a measurement failed, or the kernels' results differ too much from float64's.
    """
    from nystromformer.benchmark.gpu.command import measure_on_gpu

    text, went_well = measure_on_gpu(sections, minutes, seed, dry_run, out, command_line())
    typer.echo(text)
    raise typer.Exit(0 if went_well else 1)


if __name__ == "__main__":
    cli.run_one_of(efficiency, approximation, span, abilities, pretrain, finetune, lra, preprocess, gpu)
