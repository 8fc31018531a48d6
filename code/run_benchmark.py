"""Measure, side by side in one run."""

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
    out: Annotated[Path, typer.Option("--out", help="Folder for JSON, table and picture.")] = Path("results/tmp"),
) -> None:
    """The attention alone: time and memory over the length, beside its peers."""
    from nystromformer.benchmark.attention import AttentionBenchmark, run_attention, table, write_results
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
    write_results(settings, rows, out)
    typer.echo(table(rows))
    typer.echo(f"results: {out}")


if __name__ == "__main__":
    cli.run_one_of(attention)
