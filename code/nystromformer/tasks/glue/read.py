"""GLUE's own files: tables whose cells are not quoted, with the quirks that each has.

A quotation mark is text, and CSV quoting would merge the rows between two of them. Lines end at "\\n" alone (or
"\\r\\n"): str.splitlines cuts at characters that occur within sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nystromformer.data.hub import load_split
from nystromformer.errors import UserError, first_line
from nystromformer.tabular.cells import Cell, text_of
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import open_table
from nystromformer.tasks.finetuning.encoded import size_warning
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.glue.catalog import EVERY_TASK
from nystromformer.tasks.glue.table_task import GlueSplit, GlueTask

_HOW_TO_GET = (
    "Get the files by GLUE's download (gluebenchmark.com; glue/README.md says what goes where), or give --glue hub "
    "where there is a network"
)
_MAX_SCORE = 5.0


def find_folder(task: GlueTask, folder: Path) -> Path:
    """The folder with the task's files: `folder`/MRPC, or `folder` itself where it holds them.

    Raises:
        UserError: there is neither.
    """
    inside, train = folder / task.name, task.split("train").files[0]
    # tasks share names of columns: SST-2's files could be taken for CoLA's
    foreign = folder.absolute().name in {other.name for other in EVERY_TASK if other is not task}
    if inside.is_dir() and any(inside.iterdir()):
        return inside
    if not foreign and (folder / train).is_file():
        return folder
    raise UserError(
        f"{folder}: no data of {task.name}: found no {inside / train} and no {folder / train}. {_HOW_TO_GET}"
    )


def available_splits(task: GlueTask, folder: Path) -> tuple[str, ...]:
    """Names of the task's splits whose files are there, in the catalogue's order.

    Raises:
        UserError: the task has no folder in `folder`.
    """
    home = find_folder(task, folder)
    return tuple(split.name for split in task.splits if _find_file(home, split))


def read_split(task: GlueTask, folder: Path, split: str, skip_bad_rows: bool = False) -> tuple[Texts, str | None]:
    """Read a split; `folder` is as `find_folder` takes it.

    Args:
        skip_bad_rows: leave bad rows of train and dev files out; those of test files never are, as GLUE's server wants
            each predicted.

    Returns:
        The split, a test split without labels; where rows were left out, `ids` are the others' numbers in the file.
        What is to be said of rows that were left out, if any.

    Raises:
        UserError: the folder or the file is missing, unreadable, not UTF-8, lacks a column or has no rows, or a row is
            bad: too few or too many columns, an unknown label, a score that is no number from 0 to 5.
    """
    wanted, home = task.split(split), find_folder(task, folder)
    path = _find_file(home, wanted)
    if path is None:
        raise UserError(f"{home / wanted.files[0]}: no such file. {_HOW_TO_GET}")
    needed = [*task.sentences, *([task.label] if wanted.has_labels else [])]
    reading = Reading(quotes=path.suffix != ".tsv")
    table = open_table(path, reading)
    if task.headerless and wanted.has_labels and not set(needed) <= set(table.columns):
        table = open_table(path, reading, task.headerless)
    sentences: list[tuple[str, ...]] = []
    labels: list[float] = []
    ids: list[str] = []
    bad: list[str] = []
    for number, row in enumerate(table.rows_or_errors(needed), start=1):
        try:
            if isinstance(row, UserError):
                raise row
            texts = tuple(text_of(table, number, *each) for each in zip(task.sentences, row, strict=False))
            labels += [_label_of(task, table.place(number), row[-1])] if wanted.has_labels else []
        except UserError as error:
            bad.append(str(error))
            continue
        sentences.append(texts)
        ids.append(str(number - 1))
    left_out = None
    if bad:
        left_out = f"{bad[0]} (bad rows: {len(bad)} of {len(ids) + len(bad)})"
        if not wanted.has_labels:
            raise UserError(
                f"{left_out}. Download the file again: GLUE's server wants each row of a test file predicted"
            )
        if not skip_bad_rows:
            raise UserError(f"{left_out}. Correct them, or give --skip_bad_rows to leave such rows out")
        left_out += ", left out"
    if not sentences:
        raise UserError(f"{path}: expected rows, found none{' but bad ones' if bad else ''}")
    first, *second = map(list, zip(*sentences, strict=True))
    values = as_labels(task, labels) if wanted.has_labels else None
    name = f"{task.name} {split}"
    return Texts(name, first, second[0] if second else None, values, ids if bad else None), left_out


def as_labels(task: GlueTask, values: Sequence[float]) -> Labels:
    """Class numbers as int64, or values as float32, (n,)."""
    return np.array(values, dtype=np.int64) if task.labels else np.array(values, dtype=np.float32)


def check_size(task: GlueTask, split: str, count: int) -> list[str]:
    """A warning where a split has not as many rows as the official one."""
    official, name = task.split(split), f"{task.name} {split}"
    if official.has_labels:
        return size_warning(name, count, "row", official.rows)
    return size_warning(name, count, "row", official.rows, "GLUE's server refuses its predictions")


def _find_file(home: Path, split: GlueSplit) -> Path | None:
    return next((home / file for file in split.files if (home / file).is_file()), None)


def _label_of(task: GlueTask, place: str, cell: Cell) -> float:
    text = str(cell).strip()
    if task.labels is not None:
        if text not in task.labels:
            raise UserError(f"{place}: expected {task.label} to be {' or '.join(task.labels)}, found {text!r:.60}")
        return task.labels.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= _MAX_SCORE:
        raise UserError(f"{place}: expected {task.label} to be a number from 0 to 5, found {text!r:.60}")
    return score


def read_hub_split(task: GlueTask, split: str) -> Texts:
    """Read a split as `read_split` does, from the hub or the datasets library's cache. A test split has no labels.

    Raises:
        UserError: there is no network, or the download fails.
    """
    wanted = task.split(split)
    if wanted.hub is None:
        raise UserError(f"--glue hub: {task.name} has no copy on the hub: give --glue a folder with its files")
    config, hub_split = wanted.hub
    try:
        rows = load_split(task.hub_name, config, hub_split)
        sentences = [list(map(str, rows[column])) for column in task.hub_sentences]
        labels = as_labels(task, rows["label"]) if wanted.has_labels else None
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"--glue hub: {task.name} {split} cannot be loaded from {task.hub_name}: {first_line(error)}. It needs a "
            "network; without one, give --glue a folder that holds GLUE's own files (gluebenchmark.com)"
        ) from error
    return Texts(f"{task.name} {split}", sentences[0], sentences[1] if len(sentences) > 1 else None, labels)
