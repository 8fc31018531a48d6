"""The commands of the scripts in data-preprocessing/, which differ in a few defaults."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import typer

from nystromformer.data.preprocessing.build import TRAIN, DatasetSettings, build_dataset
from nystromformer.data.preprocessing.corpora.formats import Format, Rules
from nystromformer.data.preprocessing.corpora.text import Policy
from nystromformer.data.preprocessing.corpora.unify import UnifySettings, unify
from nystromformer.data.preprocessing.packing import MAX_LENGTH, MIN_LENGTH
from nystromformer.data.preprocessing.units import ArraySlice
from nystromformer.data.tokenizer import MOST_TOKENS
from nystromformer.errors import UserError
from nystromformer.flag_groups import with_flag_groups
from nystromformer.resources import PROCESSES_PER_CORE, most_processes, usable_cores

Documents = Annotated[Path, typer.Option("--out", help="Folder to write the documents to.")]


@dataclass(frozen=True)
class WorkFlags:
    """How a command goes about its work; for `with_flag_groups`."""

    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            min=1,
            max=most_processes(),
            help="Processes to use; the result does not depend on their number. At most "
            f"{PROCESSES_PER_CORE} for each core.",
        ),
    ] = usable_cores()
    array_index: Annotated[
        int | None,
        typer.Option(
            "--array_index",
            help="In an array job: which of the --array_size slices of the work to do, counted from 0. When all are "
            "done, the command without these two flags puts them together.",
        ),
    ] = None
    array_size: Annotated[
        int | None,
        typer.Option("--array_size", min=1, help="In an array job: into how many slices the work is divided."),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what --out holds of a run with other parameters.")
    ] = False

    @property
    def array_slice(self) -> ArraySlice | None:
        """The part of the work that flags name; None: all of it.

        Raises:
            UserError: one flag without the other, or jobs that would overwrite each other's work.
        """
        if self.array_index is None and self.array_size is None:
            return None
        if self.array_index is None or self.array_size is None:
            raise UserError("--array_index and --array_size: expected both or none")
        if self.overwrite:
            raise UserError(
                "--overwrite: not with --array_index, as jobs would remove each other's work. Remove the folder first"
            )
        return ArraySlice(self.array_index, self.array_size)


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
    lines = lines_per_document

    @with_flag_groups
    def preprocess(
        source: Annotated[
            Path, typer.Option("--source", help=f"Folder that holds the corpus, at any depth: {format.looks}.")
        ] = folder,
        out: Documents = folder / "unified",
        min_words: Annotated[
            int, typer.Option("--min_words", min=0, help="Drop documents with fewer words.")
        ] = min_words,
        lines_per_document: Annotated[
            int | None,
            typer.Option(
                "--lines_per_document",
                min=1,
                hidden=lines is None,
                help="How many lines make a document, in a corpus that does not mark where one ends.",
            ),
        ] = lines,
        undecodable: Annotated[
            str,
            typer.Option(
                "--undecodable",
                help="What to do about text that is not UTF-8, holds a NUL byte or is in another format: refuse (stop "
                "and name the line) or skip (leave it out and count it).",
            ),
        ] = "refuse",
        hub: Annotated[
            str | None,
            typer.Option(
                "--hub", help="Read a data set of the Hugging Face hub instead of files: NAME or NAME:CONFIG."
            ),
        ] = None,
        text_field: Annotated[
            str, typer.Option("--text_field", help="Key or column that holds the text, in JSON lines and with --hub.")
        ] = "text",
        work: WorkFlags = ALL_WORK,
    ) -> None:
        if lines is None and lines_per_document is not None:
            raise UserError("--lines_per_document: this corpus marks its documents")
        rules = Rules(min_words, lines_per_document, cast(Policy, undecodable), text_field)
        unify(source, out, UnifySettings(format, rules, hub), work.workers, work.overwrite, work.array_slice)

    preprocess.__doc__ = (
        f"Turn the corpus {format.name} into documents of sentences, which preprocess_data_512.py and "
        "preprocess_data_4096.py make rows of: files 00000.jsonl, … and corpus.json about them."
    )
    return preprocess


def dataset_command(
    length: int, mixture: Sequence[str], folder: Path, tokenizer_limit: int | None = None
) -> Callable[..., None]:
    """The command that makes a dataset of rows of one length.

    Args:
        length: tokens of a row if no flag says otherwise.
        mixture: corpora and weights if no flag names any.
        folder: of the corpora and of the result.
    """
    usual = length

    @with_flag_groups
    def preprocess(
        length: Annotated[
            int,
            typer.Option("--length", min=MIN_LENGTH, max=MAX_LENGTH, help="Tokens of a row, special tokens included."),
        ] = usual,
        corpora: Annotated[
            Path, typer.Option("--corpora", help="Folder that holds <name>/unified of every corpus.")
        ] = folder,
        corpus: Annotated[
            list[str] | None,
            typer.Option(
                "--corpus",
                help="Corpus to use: NAME, or NAME=WEIGHT to take its text WEIGHT times, such as wiki=1/3. Repeat the "
                f"flag for several.  [default: {', '.join(mixture)}]",
            ),
        ] = None,
        tokenizer: Annotated[
            str,
            typer.Option(
                "--tokenizer",
                help="Folder with RoBERTa's vocab.json and merges.txt, or with a tokenizer.json; or the name of one in "
                "--corpora or on the Hugging Face hub; or train, to train one on the text.",
            ),
        ] = "roberta-base",
        vocab_size: Annotated[
            int,
            typer.Option(
                "--vocab_size", max=MOST_TOKENS, help="With --tokenizer train: how many tokens it shall have."
            ),
        ] = 50265,
        tokenizer_limit: Annotated[
            int | None,
            typer.Option(
                "--tokenizer_limit", min=1, help="Longest row to allow, in place of what the tokenizer's files say."
            ),
        ] = tokenizer_limit,
        validation: Annotated[
            float,
            typer.Option(
                "--validation",
                help="Share of the documents to keep for validation; 1: no training rows, to score a model with.",
            ),
        ] = 0.2,
        seed: Annotated[
            int,
            typer.Option(
                "--seed",
                help="Decides which documents are for validation, and which are taken at a weight such as 1/3.",
            ),
        ] = 0,
        out: Annotated[
            Path | None,
            typer.Option(
                "--out",
                help="Folder to write the dataset to.  [default: beside this script, <length>-roberta, or "
                "<length>-trained with --tokenizer train]",
            ),
        ] = None,
        work: WorkFlags = ALL_WORK,
    ) -> None:
        settings = DatasetSettings(
            length, tuple(corpus or mixture), tokenizer, vocab_size, tokenizer_limit, validation, seed
        )
        target = out or folder / f"{length}-{'trained' if tokenizer == TRAIN else 'roberta'}"
        build_dataset(corpora, target, settings, work.workers, work.overwrite, work.array_slice)

    preprocess.__doc__ = f"Make a pretraining dataset of rows of {usual} tokens from unified corpora."
    return preprocess
