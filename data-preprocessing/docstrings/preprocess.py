"""English docstrings of the installed Python packages, in the unified format."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli
from nystromformer.data.preprocessing.commands import CORES, Overwrite, Workers
from nystromformer.data.preprocessing.docstring_corpus import DocstringSettings, unify_docstrings

HERE = Path(__file__).resolve().parent


def main(
    out: Annotated[Path, typer.Option("--out", help="Unified folder.")] = HERE / "unified",
    source: Annotated[
        list[Path] | None, typer.Option("--source", help="Folder to search instead of the installed packages; repeat.")
    ] = None,
    min_words: Annotated[int, typer.Option("--min_words", help="Drop modules with fewer words.")] = 20,
    limit_mb: Annotated[float | None, typer.Option("--limit_mb", help="Stop after so many MB of text.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample that a limit takes.")] = 0,
    workers: Workers = CORES,
    overwrite: Overwrite = False,
) -> None:
    """Make the unified folder of docstrings: numbered files of documents, a module each, and corpus.json about them."""
    unify_docstrings(out, DocstringSettings(tuple(source or ()), seed, min_words, limit_mb), workers, overwrite)


if __name__ == "__main__":
    cli.run(main)
