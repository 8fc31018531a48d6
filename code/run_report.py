"""Pictures and tables of finished and running experiments."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli


def pretraining(
    runs: Annotated[list[Path], typer.Argument(help="Experiment folders, such as nystrom-512 softmax-512.")],
    out: Annotated[Path, typer.Option("--out", help="The picture.")] = Path("pretraining.png"),
) -> None:
    """Draw loss, masked-token and sentence-order accuracy over the steps of any runs (the paper's Figures 5 and 6)."""
    from nystromformer.report.curves import draw_curves, read_run

    draw_curves([read_run(run) for run in runs], out)
    typer.echo(f"picture: {out}")


def table2(
    runs: Annotated[list[Path], typer.Argument(help="Experiment folders with finished fine-tuning runs.")],
    out: Annotated[Path, typer.Option("--out", help="The table, NAME.md; NAME.json beside it.")] = Path("table2.md"),
) -> None:
    """Put the finished fine-tuning runs of any experiments beside the paper's Table 2."""
    from nystromformer.report.table2 import write_table2
    from nystromformer.report.terminal import fitted

    typer.echo(fitted(write_table2(runs, out), shutil.get_terminal_size().columns))
    typer.echo(f"\ntable, settings and commands: {out}, {out.with_suffix('.json')}")


if __name__ == "__main__":
    cli.run_one_of(pretraining, table2)
