"""The commands of the scripts in data-preprocessing/, which differ in a few defaults."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from nystromformer.data.preprocessing.build import TRAIN, PretrainingSettings, build_pretraining
from nystromformer.data.preprocessing.corpora.formats import Rules
from nystromformer.data.preprocessing.corpora.text import Policy
from nystromformer.data.preprocessing.corpora.unify import UnifySettings, unify
from nystromformer.data.preprocessing.pool import usable_cores
from nystromformer.data.preprocessing.units import Share
from nystromformer.errors import UserError

CORES = usable_cores()
Workers = Annotated[int, typer.Option("--workers", min=1, help="Processes; changes no result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run with other parameters.")]
Task = Annotated[
    int | None,
    typer.Option(
        "--task", help="Do only this share, counted from 0, of --num_tasks; started without, it ends the run."
    ),
]
NumTasks = Annotated[int | None, typer.Option("--num_tasks", min=1, help="Tasks of an array job.")]


def corpus_command(
    name: str, folder: Path, min_words: int = 0, lines_per_document: int | None = None
) -> Callable[..., None]:
    """The command that makes a corpus' unified folder.

    Args:
        folder: of the script, where the corpus is and its unified folder goes.
        min_words, lines_per_document: defaults; without the latter the corpus marks its documents.
    """
    lines = lines_per_document

    def preprocess(
        source: Annotated[Path, typer.Option("--source", help="Folder with the corpus' files.")] = folder,
        out: Annotated[Path, typer.Option("--out", help="Unified folder.")] = folder / "unified",
        min_words: Annotated[
            int, typer.Option("--min_words", min=0, help="Drop documents with fewer words.")
        ] = min_words,
        lines_per_document: Annotated[
            int | None,
            typer.Option("--lines_per_document", min=1, hidden=lines is None, help="Lines taken for a document."),
        ] = lines,
        undecodable: Annotated[
            str,
            typer.Option(
                "--undecodable",
                help="Of lines that are not UTF-8 or hold a NUL byte, and stories in another format: refuse, or skip "
                "and count them.",
            ),
        ] = "refuse",
        hub: Annotated[
            str | None,
            typer.Option("--hub", help="NAME or NAME:CONFIG of a data set that is read in place of files."),
        ] = None,
        text_field: Annotated[str, typer.Option("--text_field", help="Where rows and JSON lines have text.")] = "text",
        workers: Workers = CORES,
        task: Task = None,
        num_tasks: NumTasks = None,
        overwrite: Overwrite = False,
    ) -> None:
        if lines is None and lines_per_document is not None:
            raise UserError("--lines_per_document: this corpus marks its documents")
        rules = Rules(min_words, lines_per_document, cast(Policy, undecodable), text_field)
        unify(source, out, UnifySettings(name, rules, hub), workers, overwrite, share_of(task, num_tasks, overwrite))

    preprocess.__doc__ = f"Make the unified folder of {name}: numbered files of documents, and corpus.json about them."
    return preprocess


def share_of(task: int | None, num_tasks: int | None, overwrite: bool) -> Share | None:
    """The share that flags name.

    Raises:
        UserError: one flag without the other, or tasks that would overwrite each other's work.
    """
    if task is None and num_tasks is None:
        return None
    if task is None or num_tasks is None:
        raise UserError("--task and --num_tasks: expected both or none")
    if overwrite:
        raise UserError(
            "--overwrite: not with --task, as tasks would remove each other's work. Remove the folder first"
        )
    return Share(task, num_tasks)


def pretraining_command(
    length: int, mixture: Sequence[str], folder: Path, tokenizer_limit: int | None = None
) -> Callable[..., None]:
    """The command that makes a dataset of rows of one length.

    Args:
        length: tokens of a row if no flag says otherwise.
        mixture: corpora and weights if no flag names any.
        folder: of the corpora and of the result.
    """
    usual = length

    def preprocess(
        length: Annotated[int, typer.Option("--length", help="Tokens of a row.")] = usual,
        corpora: Annotated[Path, typer.Option("--corpora", help="Folder with <name>/unified.")] = folder,
        corpus: Annotated[
            list[str] | None,
            typer.Option(
                "--corpus", help=f"NAME or NAME=WEIGHT, such as wiki=1/3; repeat. If none: {', '.join(mixture)}."
            ),
        ] = None,
        tokenizer: Annotated[
            str,
            typer.Option(
                "--tokenizer",
                help="Folder with RoBERTa's vocab.json and merges.txt, or with a tokenizer.json; its name in "
                "--corpora or on the hub; or train.",
            ),
        ] = "roberta-base",
        vocab_size: Annotated[
            int, typer.Option("--vocab_size", help="Tokens of the tokenizer that --tokenizer train trains.")
        ] = 50265,
        tokenizer_limit: Annotated[
            int | None,
            typer.Option("--tokenizer_limit", min=1, help="Longest row, if not as the tokenizer's files say."),
        ] = tokenizer_limit,
        validation: Annotated[
            float, typer.Option("--validation", help="Share of the documents for validation; 1: all, to score with.")
        ] = 0.2,
        seed: Annotated[int, typer.Option("--seed", help="Of the split and of the choice for weights.")] = 0,
        out: Annotated[
            Path | None,
            typer.Option("--out", help="Dataset folder; <length>-roberta beside if not given, or -trained."),
        ] = None,
        workers: Workers = CORES,
        task: Task = None,
        num_tasks: NumTasks = None,
        overwrite: Overwrite = False,
    ) -> None:
        settings = PretrainingSettings(
            length, tuple(corpus or mixture), tokenizer, vocab_size, tokenizer_limit, validation, seed
        )
        target = out or folder / f"{length}-{'trained' if tokenizer == TRAIN else 'roberta'}"
        build_pretraining(corpora, target, settings, workers, overwrite, share_of(task, num_tasks, overwrite))

    preprocess.__doc__ = f"Make a pretraining dataset of rows of {usual} tokens from unified corpora."
    return preprocess
