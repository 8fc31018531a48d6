"""English docstrings of the installed Python packages, in the unified format."""

import nystromformer.interrupt  # noqa: F401  # first of all: for Ctrl-C within the imports below

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli
from nystromformer.data.preprocessing.commands import ALL_WORK, Documents, WorkFlags
from nystromformer.data.preprocessing.docstring_corpus import DocstringSettings, unify_docstrings
from nystromformer.flag_groups import Without, with_flag_groups

HERE = Path(__file__).resolve().parent


@with_flag_groups
def main(
    out: Documents = HERE / "unified",
    source: Annotated[
        list[Path] | None,
        typer.Option(
            "--source", help="Folder of Python packages to read instead of the installed ones; repeat it for several."
        ),
    ] = None,
    min_words: Annotated[int, typer.Option("--min_words", help="Drop modules whose docstrings have fewer words.")] = 20,
    limit_mb: Annotated[
        float | None,
        typer.Option("--limit_mb", help="Stop after so many million characters, a sample of all packages."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Decides which sample --limit_mb takes.")] = 0,
    work: Annotated[WorkFlags, Without("array_index", "array_size")] = ALL_WORK,
) -> None:
    """Turn the docstrings of Python packages into documents of sentences, a module each, which preprocess_data_512.py
    and preprocess_data_4096.py make rows of: files 00000.jsonl, … and corpus.json about them.
    """
    settings = DocstringSettings(tuple(source or ()), seed, min_words, limit_mb)
    unify_docstrings(out, settings, work.workers, work.overwrite)


if __name__ == "__main__":
    cli.run(main)
