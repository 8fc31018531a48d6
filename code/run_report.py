"""Pictures and tables of finished and running experiments."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli
from nystromformer.files.paths import EXPERIMENTS, experiment_folder
from nystromformer.tables import show

Runs = Annotated[
    list[Path],
    typer.Argument(
        parser=experiment_folder, metavar="RUNS...", help="Experiment folders, such as nystrom-512 softmax-512."
    ),
]
Table = Annotated[
    Path, typer.Option("--out", help="Output table, ending in .md; a .json of the same name is written beside it.")
]


def pretraining(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", help="Output picture: PNG, SVG or PDF, by its ending.")] = Path(
        "pretraining.png"
    ),
) -> None:
    """Draw training curves: loss and accuracies over the steps, as in the paper's Figures 5 and 6."""
    from nystromformer.report.curves import draw_curves, read_curve

    draw_curves([read_curve(run) for run in runs], out)
    typer.echo(f"picture: {out}")


def table2(runs: Runs, out: Table = Path("table2.md")) -> None:
    """Compare the results of fine-tuning with the paper's Table 2, and list the settings of each."""
    from nystromformer.report.table2 import write_table2

    show(write_table2(runs, out))
    typer.echo(f"\ntable, settings and commands: {out}, {out.with_suffix('.json')}")


def lra(
    experiments: Annotated[
        list[Path] | None,
        typer.Argument(help="Experiment folders with finished runs. Default: all of experiments/lra/."),
    ] = None,
    out: Table = Path("lra.md"),
) -> None:
    """Compare runs on the Long Range Arena with the paper's Table 3: scores, time and memory."""
    from nystromformer.report.lra import write_lra

    shipped = sorted(path.parents[1] for path in (EXPERIMENTS / "lra").glob("*/model/lra"))
    show(write_lra(experiments or shipped, out))
    typer.echo(f"table and figures: {out}, {out.with_suffix('.json')}")


def transactions(
    experiments: Annotated[
        list[Path] | None,
        typer.Argument(help="Experiment folders with finished runs. Default: experiments/transactions/encoder."),
    ] = None,
    out: Table = Path("transactions.md"),
) -> None:
    """Compare runs on clients' events: Gini, differences from the LSTM, time and memory."""
    from nystromformer.report.transactions import write_transactions

    show(write_transactions(experiments or [EXPERIMENTS / "transactions" / "encoder"], out))
    typer.echo(f"table and figures: {out}, {out.with_suffix('.json')}")


if __name__ == "__main__":
    cli.run_one_of(pretraining, table2, lra, transactions)
