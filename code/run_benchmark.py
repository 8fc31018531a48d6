"""Measure attention, training steps and preprocessing, each beside its alternatives."""

import nystromformer.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path

import typer

from nystromformer import cli
from nystromformer.benchmark import settings as flags
from nystromformer.flag_groups import with_flag_groups
from nystromformer.flags import DatasetFolder, DeviceName, ModelFolder, Overrides, command_line, refuse_given
from nystromformer.paths import EXPERIMENTS


@with_flag_groups
def efficiency(
    context: typer.Context, settings: flags.Efficiency, results: flags.Results, peers: flags.Peers = False
) -> None:
    """Time and memory of every attention over the length, alone and in a small encoder, beside softmax."""
    if peers:
        from nystromformer.benchmark.attention import measure_beside_peers

        refuse_given(context, flags.NOT_BESIDE_PEERS, "--peers: the attention alone is measured, at every length")
        typer.echo(measure_beside_peers(settings, results.out, command_line()))
        return
    from nystromformer.benchmark.efficiency.measure import measure_efficiency

    typer.echo(measure_efficiency(settings, results.out, command_line()))


@with_flag_groups
def approximation(
    settings: flags.Approximation,
    results: flags.Results,
    model: ModelFolder = Path("/model"),
    dataset: DatasetFolder = None,
    device: DeviceName = "auto",
    overrides: Overrides = None,
) -> None:
    """How far attentions are from softmax on a checkpoint's queries and keys, and what that costs its loss."""
    from nystromformer.tasks.experiment.folder import open_experiment

    experiment = open_experiment(model, overrides or [])

    from nystromformer.benchmark.approximation.compare import measure_approximation
    from nystromformer.tasks.experiment.opening import run_device
    from nystromformer.training import Group

    chosen = run_device(experiment, device, Group())
    typer.echo(measure_approximation(experiment, dataset, chosen, settings, results.out, command_line()))


@with_flag_groups
def span(
    settings: flags.Span, results: flags.Results, dataset: DatasetFolder = None, device: DeviceName = "auto"
) -> None:
    """How far trained models attend: the mean distance to attended tokens, pretrained and fine-tuned."""
    from nystromformer.benchmark.span.compare import measure_spans
    from nystromformer.training import choose_device

    chosen = choose_device(device, mixed_precision=False)
    typer.echo(measure_spans(settings, dataset, chosen, results.out, command_line()))


@with_flag_groups
def abilities(settings: flags.Abilities, results: flags.Results) -> None:
    """Small tasks that softmax learns within minutes: which attention can look things up, shift, copy, find and count.

    Stopped and started again, it continues; another command with the same --out adds to its tables.
    """
    from nystromformer.benchmark.abilities.measure import measure_abilities

    typer.echo(measure_abilities(settings, results.out, command_line()))


@with_flag_groups
def pretrain(settings: flags.Pretraining, results: flags.Results) -> None:
    """Time and memory of a pretraining step of BERT-small, beside transformers' Nyströmformer."""
    from nystromformer.benchmark.pretrain import measure_pretraining

    typer.echo(measure_pretraining(settings, results.out))


@with_flag_groups
def finetune(settings: flags.Finetuning, results: flags.Results) -> None:
    """Time and memory of fine-tuning on short texts: in batches by length, in padded ones, and by transformers."""
    from nystromformer.benchmark.finetune import measure_finetuning

    typer.echo(measure_finetuning(settings, results.out))


@with_flag_groups
def lra(settings: flags.ListOps, results: flags.Results, overrides: Overrides = None) -> None:
    """A step of training on ListOps beside the same model with the authors' attention, and where its time goes."""
    from nystromformer.benchmark.lra import LraBenchmark, measure_lra

    recipe = EXPERIMENTS / "lra" / "listops" / "config.json"
    typer.echo(measure_lra(LraBenchmark(recipe, **vars(settings), overrides=tuple(overrides or ())), results.out))


@with_flag_groups
def preprocess(settings: flags.Preprocessing, results: flags.Results) -> None:
    """Tokens a second of preprocessing text into training rows, beside those of the tokenizer alone."""
    from nystromformer.benchmark.preprocess import measure_preprocessing

    typer.echo(measure_preprocessing(settings, results.out))


@with_flag_groups
def gpu(settings: flags.Gpu, results: flags.Results) -> None:
    """The fused kernels on a GPU: are they right, how fast are they, and what do they bring in training.

    The exit status is 1 where a measurement failed, or the kernels' results differ too much from float64's.
    """
    from nystromformer.benchmark.gpu.run import measure_on_gpu

    text, went_well = measure_on_gpu(settings, results.out, command_line())
    typer.echo(text)
    raise typer.Exit(0 if went_well else 1)


if __name__ == "__main__":
    cli.run_one_of(efficiency, approximation, span, abilities, pretrain, finetune, lra, preprocess, gpu)
