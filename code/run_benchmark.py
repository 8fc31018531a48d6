"""Measure, side by side in one run."""

import re
import secrets
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli


def attention(
    lengths: Annotated[str, typer.Option("--lengths", help="Tokens, separated by commas.")] = (
        "512,1024,2048,4096,8192,16384"
    ),
    batch: Annotated[int, typer.Option("--batch", min=1)] = 1,
    num_landmarks: Annotated[int, typer.Option("--num_landmarks", min=1)] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="At up to 2048 tokens; fewer above.")] = 15,
    threads: Annotated[int, typer.Option("--threads", min=1)] = 2,
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON, tables and picture.")] = Path("results/tmp"),
) -> None:
    """The attention alone: time and memory over the length, beside its peers."""
    from nystromformer.benchmark.attention import AttentionBenchmark, run_attention
    from nystromformer.benchmark.attention_report import table, write_results
    from nystromformer.errors import UserError

    try:
        numbers = tuple(int(part) for part in lengths.split(","))
    except ValueError:
        raise UserError(f"--lengths: expected numbers separated by commas, found {lengths!r}") from None
    wrong = [n for n in numbers if n <= num_landmarks or n % num_landmarks]
    if wrong:
        raise UserError(
            f"--lengths: expected multiples of --num_landmarks = {num_landmarks}, larger than it, because the peers "
            f"accept no others; found {wrong}"
        )
    out.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    settings = AttentionBenchmark(numbers, batch, num_landmarks=num_landmarks, repeats=repeats, threads=threads)
    rows = run_attention(settings)
    write_results(settings, rows, out, shlex.join(["python", *sys.argv]))
    typer.echo(table(rows))
    typer.echo(f"results: {out}")


def pretrain(
    sizes: Annotated[str, typer.Option("--sizes", help="TOKENSxROWS of the batches, separated by commas.")] = (
        "512x8,4096x1"
    ),
    repeats: Annotated[int, typer.Option("--repeats", min=1)] = 7,
    threads: Annotated[int, typer.Option("--threads", min=1)] = 2,
    layers: Annotated[int, typer.Option("--layers", min=1)] = 4,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 512,
    vocab_size: Annotated[int, typer.Option("--vocab_size", min=300)] = 50265,
    precision: Annotated[str, typer.Option("--precision", help="float32, bf16 or fp16.")] = "float32",
    compiled: Annotated[bool, typer.Option("--compile", help="Measure compiled layers, too.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON and table.")] = Path("results/tmp"),
) -> None:
    """A pretraining step of BERT-small: time and memory beside transformers' module."""
    from nystromformer.benchmark.pretrain import PretrainBenchmark, run_pretrain_benchmark, table, write_results
    from nystromformer.errors import UserError

    found = [re.fullmatch(r"(\d+)x(\d+)", part.strip()) for part in sizes.split(",")]
    batches = tuple((int(match[1]), int(match[2])) for match in found if match)
    if len(batches) < len(found) or any(n <= 64 or n % 64 or not rows for n, rows in batches):
        raise UserError(
            "--sizes: expected TOKENSxROWS separated by commas, such as 512x8,4096x1, with more tokens than the 64 "
            f"landmarks and a multiple of them (transformers accepts no others); found {sizes!r}"
        )
    mixed_precision = _precision(precision)
    _check_width(width)
    out.mkdir(parents=True, exist_ok=True)  # before the minutes of measuring
    settings = PretrainBenchmark(
        sizes=batches,
        vocab_size=vocab_size,
        width=width,
        num_layers=layers,
        mixed_precision=mixed_precision,
        compile=compiled,
        repeats=repeats,
        threads=threads,
    )
    rows = run_pretrain_benchmark(settings)
    write_results(settings, rows, out)
    typer.echo(table(rows))
    typer.echo(f"results: {out}")


def finetune(
    glue: Annotated[
        Path | None, typer.Option("--glue", help="GLUE's folder, for SST-2's rows; made-up ones if not given.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="RoBERTa's folder, with --glue.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Examples of a step.")] = 32,
    pad_to: Annotated[int, typer.Option("--pad_to", min=128, help="A multiple of the 64 landmarks.")] = 512,
    batches: Annotated[int, typer.Option("--batches", min=1, help="Steps by length in a measurement.")] = 16,
    repeats: Annotated[int, typer.Option("--repeats", min=1)] = 3,
    threads: Annotated[int, typer.Option("--threads", min=1)] = 2,
    layers: Annotated[int, typer.Option("--layers", min=1)] = 4,
    width: Annotated[int, typer.Option("--width", min=64, help="A multiple of 64.")] = 512,
    vocab_size: Annotated[int, typer.Option("--vocab_size", min=300)] = 50265,
    precision: Annotated[str, typer.Option("--precision", help="float32, bf16 or fp16.")] = "float32",
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON and table.")] = Path("results/tmp"),
) -> None:
    """Fine-tuning steps on SST-2's short rows: by length, padded, and beside transformers' module."""
    from nystromformer.benchmark.finetune import FinetuneBenchmark, run_finetune_benchmark, table, write_results
    from nystromformer.errors import UserError

    if (glue is None) != (tokenizer is None):
        raise UserError("--glue and --tokenizer: expected both or none")
    if pad_to % 64:
        raise UserError(f"--pad_to: expected a multiple of the 64 landmarks, found {pad_to}")
    mixed_precision = _precision(precision)
    _check_width(width)
    out.mkdir(parents=True, exist_ok=True)
    settings = FinetuneBenchmark(
        glue=glue,
        tokenizer=tokenizer,
        batch=batch,
        pad_to=pad_to,
        batches=batches,
        repeats=repeats,
        threads=threads,
        num_layers=layers,
        width=width,
        vocab_size=vocab_size,
        mixed_precision=mixed_precision,
    )
    rows = run_finetune_benchmark(settings)
    write_results(settings, rows, out)
    typer.echo(table(rows))
    typer.echo(f"results: {out}")


def preprocess(
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="A corpus' unified folder; made-up text if not given.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer's folder; trained on the text if not given.")
    ] = None,
    megabytes: Annotated[float, typer.Option("--megabytes", min=0.1, help="Of text.")] = 64.0,
    length: Annotated[int, typer.Option("--length", min=8, help="Tokens of a row.")] = 512,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes of ours, threads of the other.")] = 2,
    repeats: Annotated[int, typer.Option("--repeats", min=1)] = 3,
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON and table.")] = Path("results/tmp"),
) -> None:
    """Tokens a second of preprocess_data_<length>.py beside those of the tokenizer alone."""
    from nystromformer.benchmark.preprocess import PreprocessBenchmark, run_preprocess, table, write_results

    out.mkdir(parents=True, exist_ok=True)
    settings = PreprocessBenchmark(corpus, tokenizer, megabytes, length, workers, repeats)
    rows = run_preprocess(settings)
    write_results(settings, rows, out)
    typer.echo(table(rows))
    typer.echo(f"results: {out}")


def gpu(
    sections: Annotated[str, typer.Option("--sections", help="Some of them, separated by commas.")] = (
        "check,ceilings,kernels,attention,training"
    ),
    minutes: Annotated[
        float, typer.Option("--minutes", help="The time limit: what matters less is left out, and named.")
    ] = 8.3,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Of the comparisons' random inputs; drawn anew if not given.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry_run", help="Go through everything on the CPU, in tiny sizes: figures mean nothing.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON, tables and pictures.")] = Path("results/tmp"),
) -> None:
    """The kernels on a GPU: right, fast, beside what they compete with, and in training.

    The exit status is 1 where anything failed or a comparison with float64 was wrong.
    """
    from nystromformer.errors import UserError

    try:
        from nystromformer.benchmark.gpu.run import run_gpu_benchmark
        from nystromformer.benchmark.gpu.settings import choose_settings
        from nystromformer.benchmark.gpu.summary import failures, summary
    except ModuleNotFoundError as error:
        raise UserError(f"the package {error.name} is not installed: pip install {error.name}") from None

    settings = choose_settings(sections, minutes, secrets.randbits(31) if seed is None else seed, dry_run)
    out.mkdir(parents=True, exist_ok=True)
    figures = run_gpu_benchmark(settings, out, shlex.join(["python", *sys.argv]))
    typer.echo(summary(figures))
    typer.echo(f"results: {out}")
    if failures(figures):
        raise typer.Exit(1)


def _precision(name: str) -> bool | str:
    """The name as `mixed_precision`."""
    from nystromformer.errors import UserError

    if name not in ("float32", "bf16", "fp16"):
        raise UserError(f"--precision: expected float32, bf16 or fp16, found {name!r}")
    return False if name == "float32" else name


def _check_width(width: int) -> None:
    from nystromformer.errors import UserError

    if width % 64:
        raise UserError(f"--width: expected a multiple of the heads' 64, found {width}")


if __name__ == "__main__":
    cli.run_one_of(attention, pretrain, finetune, preprocess, gpu)
