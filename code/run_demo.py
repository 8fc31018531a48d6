"""The demonstration behind `make demo`."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import cli


def demo(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder. Default: demo, or demo-quick with --quick."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Train for 20 steps on little text: shows that everything runs, but learns nothing."
        ),
    ] = False,
) -> None:
    """Train four small encoders on the docstrings of the Python packages on this machine, with Nyström, near_far and
    softmax attention, and compare what they learned.

    Ends with a picture, a report to open in a browser, and results.json. After an interruption the same
    command resumes, and does not repeat what is finished.
    """
    from nystromformer.report.demo import run_demo
    from nystromformer.tables import show

    show(run_demo(out or Path("demo-quick" if quick else "demo"), quick))


if __name__ == "__main__":
    cli.run(demo)
