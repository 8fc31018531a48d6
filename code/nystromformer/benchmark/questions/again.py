"""The tables and pictures of a benchmark's file."""

from pathlib import Path
from typing import Annotated

import typer


def again(
    files: Annotated[
        list[Path], typer.Argument(help="Files that a benchmark wrote, such as results/efficiency/efficiency.json.")
    ],
) -> str:
    """Make tables and pictures again from the figures that were measured, beside the files; measures nothing."""
    from nystromformer.benchmark.findings import publish_again

    return "\n\n".join(map(publish_again, files))
