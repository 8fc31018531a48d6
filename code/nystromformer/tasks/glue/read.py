"""GLUE's own files: tables whose cells are not quoted, with the quirks that each has.

A quotation mark is text, and CSV quoting would merge the rows between two of them. Lines end at "\\n" alone (or
"\\r\\n"): str.splitlines cuts at characters that occur within sentences.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell, as_number, text_of
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import open_table
from nystromformer.tasks.finetuning.encoded import size_warning
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.glue.table_task import GlueTask

_HOW_TO_GET = "Get the files by GLUE's download (gluebenchmark.com; glue/README.md says what goes where)"
_MAX_SCORE = 5.0


def find_files(task: GlueTask, folder: Path) -> dict[str, Path]:
    """The files of a task's splits that are there, by the splits' names in the catalogue's order: in `folder`/MRPC."""
    home = folder / task.name
    places = {split.name: [home / file for file in split.files if (home / file).is_file()] for split in task.splits}
    for needed in ("train", task.dev_splits[0]):
        if not places[needed]:
            raise UserError(f"{home / task.split(needed).files[0]}: no such file. {_HOW_TO_GET}")
    return {name: found[0] for name, found in places.items() if found}


def read_split(task: GlueTask, split: str, path: Path, skip_bad_rows: bool = False) -> tuple[Texts, str | None]:
    """Read a split's file, and say what is to be said of rows that were left out, if any.

    Args:
        skip_bad_rows: leave rows of train and dev files out that have too few or too many columns or a bad label, so
            that `ids` are the others' numbers; those of test files never are, as GLUE's server wants each predicted.
    """
    wanted = task.split(split)
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
        if not (wanted.has_labels and skip_bad_rows):
            raise UserError(f"{left_out}. Correct them; --skip_bad_rows leaves them out, but of test files")
        left_out += ", left out"
    if not sentences:
        raise UserError(f"{path}: expected rows, found none{' but bad ones' if bad else ''}")
    first, *second = map(list, zip(*sentences, strict=True))
    values: Labels | None = None
    if wanted.has_labels:
        values = np.array(labels, dtype=np.int64) if task.labels else np.array(labels, dtype=np.float32)
    name = f"{task.name} {split}"
    return Texts(name, first, second[0] if second else None, values, ids if bad else None), left_out


def check_size(task: GlueTask, split: str, count: int) -> list[str]:
    """A warning where a split has not as many rows as the official one."""
    official = task.split(split)
    why = () if official.has_labels else ("GLUE's server refuses its predictions",)
    return size_warning(f"{task.name} {split}", count, "row", official.rows, *why)


def _label_of(task: GlueTask, place: str, cell: Cell) -> float:
    text = str(cell).strip()
    if task.labels is not None:
        if text not in task.labels:
            raise UserError(f"{place}: expected {task.label} to be {' or '.join(task.labels)}, found {text!r:.60}")
        return task.labels.index(text)
    score = as_number(text)
    if score is None or not 0 <= score <= _MAX_SCORE:
        raise UserError(f"{place}: expected {task.label} to be a number from 0 to 5, found {text!r:.60}")
    return score
