"""The commands of the scripts in data-preprocessing/, which differ in a few defaults."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.command_line import flags
from nystromformer.command_line.flag_groups import Without, with_flag_groups
from nystromformer.data.preprocessing.build import build_dataset
from nystromformer.data.preprocessing.formats import Format, Rules, unify
from nystromformer.data.preprocessing.settings import TRAIN, DatasetSettings

Documents = Annotated[Path, typer.Option("--out", help="Output folder of the documents.")]


@dataclass(frozen=True)
class WorkFlags:
    """How a command goes about its work; for `with_flag_groups`."""

    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes to use; the result does not depend on their number.")
    ] = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    array_index: flags.ArrayIndex = None
    array_size: flags.ArraySize = None

    @property
    def share(self) -> slice | None:
        """The parts of the work that flags name; None: all."""
        return flags.array_slice(self.array_index, self.array_size)


ALL_WORK = WorkFlags()
"""All of it, on all cores."""


def corpus_command(
    format: Format, folder: Path, min_words: int = 0, lines_per_document: int | None = None
) -> Callable[..., None]:
    """The command that makes a corpus' unified folder.

    Args:
        folder: of the script, where the corpus is and its unified folder goes.
        min_words, lines_per_document: defaults; without the latter the corpus marks its documents.
    """
    without_lines = () if lines_per_document else ("lines_per_document",)

    @with_flag_groups
    def preprocess(
        rules: Annotated[Rules, Without(*without_lines)] = Rules(min_words, lines_per_document),  # noqa: B008
        source: Annotated[
            Path, typer.Option("--source", help=f"Folder that holds the corpus, at any depth: {format.looks}.")
        ] = folder,
        out: Documents = folder / "unified",
        work: WorkFlags = ALL_WORK,
    ) -> None:
        unify(source, out, format, rules, work.workers, work.share)

    preprocess.__doc__ = (
        f"Turn the corpus {format.name} into documents of sentences, which preprocess_data_512.py and "
        "preprocess_data_4096.py make rows of: files 00000.jsonl, … and corpus.json about them."
    )
    return preprocess


def dataset_command(length: int, mixture: Sequence[str], folder: Path) -> Callable[..., None]:
    """The command that makes a dataset of rows of one length.

    Args:
        length: tokens of a row if no flag says otherwise.
        mixture: corpora and weights if no flag names any.
        folder: of the corpora and of the result.
    """
    usual = DatasetSettings(length, list(mixture))

    @with_flag_groups
    def preprocess(
        settings: DatasetSettings = usual,
        corpora: Annotated[Path, typer.Option(help="Folder that holds <name>/unified of every corpus.")] = folder,
        out: Annotated[
            Path | None,
            typer.Option(
                help="Folder to write the dataset to.  [default: beside this script, <length>-roberta, or "
                "<length>-trained with --tokenizer train]",
            ),
        ] = None,
        work: WorkFlags = ALL_WORK,
    ) -> None:
        kind = "trained" if settings.tokenizer == TRAIN else "roberta"
        target = out or folder / f"{settings.length}-{kind}"
        build_dataset(corpora, target, settings, work.workers, work.share)

    preprocess.__doc__ = f"Make a pretraining dataset of rows of {length} tokens from unified corpora."
    return preprocess
