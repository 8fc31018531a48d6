"""GLUE's own TSV files, with the quirks that each has.

No field is quoted: a quotation mark is text, and CSV quoting would merge the rows between two of them. Lines end at
"\\n" alone (or "\\r\\n"): str.splitlines cuts at characters that occur within sentences.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nystromformer.errors import UserError
from nystromformer.reading import check_readable, is_there, read_lines
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.glue.catalog import TASKS, GlueSplit, GlueTask

logger = logging.getLogger(__name__)

_HOW_TO_GET = (
    "Get the files by GLUE's download (gluebenchmark.com; glue/README.md says what goes where), or give --glue hub "
    "where there is a network"
)
_LONGEST_SHOWN = 60
_LONGEST_LINE = 1 << 20
"""Bytes; GLUE's own have a few thousand."""
_MOST_BYTES = 1 << 30
"""All of its rows are held in memory; GLUE's largest file has 80 MB."""
_MAX_SCORE = 5.0


def find_folder(task: GlueTask, folder: Path) -> Path:
    """The folder with the task's files: `folder`/MRPC, or `folder` itself where it holds them.

    Raises:
        UserError: there is neither.
    """
    inside = folder / task.folder
    # tasks share names of columns: SST-2's files could be taken for CoLA's
    foreign = folder.absolute().name in {other.folder for other in TASKS if other is not task}
    with _reading(folder):
        if inside.is_dir() and any(inside.iterdir()):
            return inside
        if not foreign and (folder / "train.tsv").is_file():
            return folder
        raise UserError(
            f"{folder}: no data of {task.name}. Looked for {inside / 'train.tsv'} and {folder / 'train.tsv'}; "
            f"{_what_is_there(folder)}. {_HOW_TO_GET}"
        )


def available_splits(task: GlueTask, folder: Path) -> tuple[str, ...]:
    """Names of the task's splits whose files are there, in the catalogue's order.

    Raises:
        UserError: the task has no folder in `folder`.
    """
    home = find_folder(task, folder)
    return tuple(split.name for split in task.splits if _find_file(home, split))


def read_split(task: GlueTask, folder: Path, split: str, skip_bad_rows: bool = False) -> Texts:
    """Read a split; `folder` is as `find_folder` takes it.

    A test split has no labels. With `skip_bad_rows`, bad rows of train and dev files are left out, which is logged, and
    `ids` are then the rows' numbers in the file. Those of test files never are: GLUE's server wants each predicted.

    Raises:
        UserError: the folder or the file is missing, unreadable, not UTF-8, lacks a column or has no rows, or a row is
            bad: too few or too many columns, an unknown label, a score that is no number from 0 to 5.
        ValueError: the task has no such split.
    """
    texts, left_out = read_and_leave_out(task, folder, split, skip_bad_rows)
    if left_out is not None:
        logger.warning("%s", left_out)
    return texts


def read_and_leave_out(task: GlueTask, folder: Path, split: str, skip_bad_rows: bool) -> tuple[Texts, str | None]:
    """What `read_split` returns, and what it would log of the rows that it leaves out."""
    wanted = task.split(split)
    home = find_folder(task, folder)
    path = _find_file(home, wanted)
    if path is None:
        raise UserError(f"{_place(home, wanted.files[0])}: missing; {_what_is_there(home)}. {_HOW_TO_GET}")
    lines = _lines_of(path)
    columns, first_line = _columns_of(task, wanted, path, lines)
    rows = _Rows(task, wanted, columns)
    for line in lines[first_line:]:
        rows.add(line)
    left_out = _bad_rows(rows, path, first_line, wanted, skip_bad_rows) if rows.bad else None
    if not rows.numbers:
        raise UserError(f"{path}: expected rows, found {f'none but {len(rows.bad)} bad' if rows.bad else 'none'}")
    return rows.texts(), left_out


def check_size(task: GlueTask, split: str, count: int) -> str | None:
    """A sentence that says so where a split has not as many rows as GLUE's own.

    Raises:
        ValueError: the task has no such split.
    """
    known = task.split(split).rows
    if count == known:
        return None
    why = "results on it do not compare with published ones"
    if not task.split(split).has_labels:
        why = "GLUE's server refuses its predictions"
    return f"{task.name} {split} has {count} {'row' if count == 1 else 'rows'}, GLUE's own {known}: {why}"


def _what_is_there(folder: Path) -> str:
    if not folder.is_dir():
        return "the folder does not exist"
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return "the folder is empty"
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"the folder holds {', '.join(names[:12])}{more}"


def _find_file(home: Path, split: GlueSplit) -> Path | None:
    with _reading(home):
        return next((place for file in split.files if is_there(place := _place(home, file))), None)


def _place(home: Path, file: str) -> Path:
    # normpath: "MNLI/../AX" is beside MNLI also where MNLI is a link to another place
    return Path(os.path.normpath(home / file))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error


def _lines_of(path: Path) -> list[str]:
    with _reading(path):
        check_readable(path, _MOST_BYTES, "a GLUE file", "Download it again")
        with path.open("rb") as file:
            data = b"".join(read_lines(file, path, _LONGEST_LINE))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path}: line {line}: not UTF-8: found the byte 0x{error.object[error.start]:02x}. Convert the file to "
            "UTF-8, or download it again"
        ) from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _columns_of(task: GlueTask, split: GlueSplit, path: Path, lines: list[str]) -> tuple[list[str], int]:
    """Names of the columns, and which line has the first row."""
    if not lines:
        raise UserError(f"{path}: expected rows, found an empty file. Download it again")
    columns = [name.strip() for name in lines[0].split("\t")]
    needed = [*task.sentences, *([task.label] if split.has_labels else [])]
    if task.headerless and split.has_labels and not set(needed) <= set(columns):
        return list(task.headerless), 0
    lacking = [name for name in needed if name not in columns]
    if lacking:
        raise UserError(
            f"{path}: line 1: expected a header with the columns {', '.join(needed)}, found none called "
            f"{', '.join(lacking)}; there are {_shown(', '.join(columns), 200)}"
        )
    return columns, 1


@dataclass(frozen=True)
class _BadRow:
    number: int
    reason: str


class _Rows:
    """The rows of a file as they are read: sentences and labels of the good ones, reasons of the bad ones."""

    def __init__(self, task: GlueTask, split: GlueSplit, columns: list[str]) -> None:
        self._task = task
        self._split = split
        self._width = len(columns)
        self._sentence_columns = [columns.index(name) for name in task.sentences]
        self._label_column = columns.index(task.label) if split.has_labels else None
        self._sentences: list[list[str]] = [[] for _ in task.sentences]
        self._labels: list[float] = []
        self._count = 0
        self.numbers: list[int] = []
        self.bad: list[_BadRow] = []

    def add(self, line: str) -> None:
        number, self._count = self._count, self._count + 1
        fields = line.split("\t")
        try:
            if len(fields) != self._width:
                raise _BadValue(f"expected {self._width} columns, found {len(fields)}: {_shown(line)}")
            if self._label_column is not None:
                self._labels.append(_label_of(self._task, fields[self._label_column].strip()))
        except _BadValue as error:
            self.bad.append(_BadRow(number, str(error)))
            return
        for sentences, column in zip(self._sentences, self._sentence_columns, strict=True):
            sentences.append(fields[column])
        self.numbers.append(number)

    def texts(self) -> Texts:
        first, *rest = self._sentences
        return Texts(
            name=f"{self._task.name} {self._split.name}",
            first=first,
            second=rest[0] if rest else None,
            labels=as_labels(self._task, self._labels) if self._split.has_labels else None,
            ids=list(map(str, self.numbers)) if self.bad else None,
        )


def as_labels(task: GlueTask, values: Sequence[float]) -> Labels:
    """Class numbers as int64, or values as float32, (n,)."""
    return np.array(values, dtype=np.int64) if task.labels else np.array(values, dtype=np.float32)


class _BadValue(ValueError):
    """What is wrong with a row."""


def _label_of(task: GlueTask, text: str) -> float:
    if task.labels is not None:
        if text not in task.labels:
            raise _BadValue(f"expected {task.label} to be {' or '.join(task.labels)}, found {_shown(text)}")
        return task.labels.index(text)
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not 0 <= score <= _MAX_SCORE:
        raise _BadValue(f"expected {task.label} to be a number from 0 to 5, found {_shown(text)}")
    return score


def _bad_rows(rows: _Rows, path: Path, first_line: int, split: GlueSplit, skip: bool) -> str:
    """What is said of bad rows that are left out; of others a UserError is raised."""
    first = rows.bad[0]
    place = f"{path}: line {first.number + first_line + 1}: {first.reason}"
    verb = "is" if len(rows.bad) == 1 else "are"
    share = f"{len(rows.bad)} of {len(rows.bad) + len(rows.numbers)} rows {verb} bad"
    if skip and split.has_labels:
        return f"{place}. {share} and {verb} left out"
    remedy = (
        "Correct them, or give --skip_bad_rows to leave such rows out"
        if split.has_labels
        else "Download the file again: rows of a test file cannot be left out, GLUE's server wants each predicted"
    )
    raise UserError(f"{place} ({share}). {remedy}")


def _shown(text: str, longest: int = _LONGEST_SHOWN) -> str:
    return repr(text) if len(text) <= longest else f"{text[:longest]!r} …"
