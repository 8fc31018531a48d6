"""The demonstration behind `make demo`."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli


def demo(
    out: Annotated[Path | None, typer.Option("--out", help="Folder; default: demo, or demo-quick.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few steps, to see that everything runs.")] = False,
) -> None:
    """From the docstrings of this machine to four trained encoders, a picture and a page; run again, it goes on."""
    from nystromformer.report.demo import DemoSettings, run_demo

    result = run_demo(DemoSettings(out or Path("demo-quick" if quick else "demo"), quick))
    typer.echo(result.summary)
    typer.echo(f"picture: {result.picture}\nreport:  {result.page}")


if __name__ == "__main__":
    cli.run(demo)
