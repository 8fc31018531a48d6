"""The commands of the scripts in data-preprocessing/, which differ in a few defaults."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import typer

from nystromformer.data.corpora.formats import Rules
from nystromformer.data.corpora.text import Policy
from nystromformer.data.corpora.unify import UnifySettings, unify
from nystromformer.data.units import Share
from nystromformer.errors import UserError

CORES = os.cpu_count() or 1
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
            str, typer.Option("--undecodable", help="Of lines that are not UTF-8: refuse, or skip and count them.")
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
