"""Make a pretraining dataset of the English docstrings of the installed Python packages."""

from pathlib import Path
from typing import Annotated

import typer

from nystromformer import cli
from nystromformer.data.build import build_dataset
from nystromformer.data.docstring_corpus import DocstringSettings, write_docstring_corpus
from nystromformer.data.pool import usable_cores

HERE = Path(__file__).resolve().parent


def main(
    out: Annotated[
        Path | None, typer.Option("--out", help="Dataset folder; ../<length>-docstrings if not given.")
    ] = None,
    length: Annotated[int, typer.Option("--length", help="Tokens of a row.")] = 256,
    vocab_size: Annotated[int, typer.Option("--vocab_size", help="Tokens of the tokenizer that is trained.")] = 4096,
    seed: Annotated[int, typer.Option("--seed", help="Of the split by package, and of the sample for a limit.")] = 0,
    min_words: Annotated[int, typer.Option("--min_words", help="Drop modules with fewer words.")] = 20,
    limit_mb: Annotated[float | None, typer.Option("--limit_mb", help="Stop after so many MB of text.")] = None,
    source: Annotated[
        list[Path] | None, typer.Option("--source", help="Folder to search instead of the installed packages; repeat.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that read; changes no result.")
    ] = usable_cores(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run with other parameters.")] = False,
) -> None:
    """Make a pretraining dataset of the English docstrings of the installed Python packages."""
    corpus = DocstringSettings(tuple(source or ()), seed, min_words, limit_mb)
    settings = corpus.build_settings(length, vocab_size)
    folder = out or HERE.parent / f"{length}-docstrings"
    build_dataset(folder, settings, lambda at: write_docstring_corpus(at, corpus, workers), overwrite)


if __name__ == "__main__":
    cli.run(main)
