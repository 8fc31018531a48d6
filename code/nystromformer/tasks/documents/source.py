"""The rows of a table as texts and labels: where it is, and which columns are what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell, empty_texts, id_of, is_missing, text_of
from nystromformer.tabular.table import Table, column_named, columns_named
from nystromformer.tasks.documents.labels import LabelCells
from nystromformer.wording import number_of

if TYPE_CHECKING:
    from nystromformer.tasks.documents.question import Question

_DECIMAL_COMMA = re.compile(r"-?\d+,\d+", re.ASCII)


@dataclass(frozen=True)
class Rows:
    """A table that was read."""

    table: Table
    text_columns: tuple[str, ...]
    labels: LabelCells | None
    """None where the table has no labels."""
    texts: list[tuple[str, ...]]
    """One or two of each row."""
    ids: list[str]
    numbers: list[int]
    """Of the rows in their table, from 1."""
    group: list[Cell]
    time: list[Cell]
    left_out: int
    """Rows without text, or without a label."""

    def __len__(self) -> int:
        return len(self.texts)


def read_rows(table: Table, question: Question, labelled: bool = True, divided: bool = False) -> Rows:
    """Read a table.

    Args:
        labelled: whether it must have labels; else they are read where it has their columns.
        divided: whether the columns to divide it by (group, time) are read.

    Raises:
        UserError: a column is missing, a row is none, or texts are empty (says how many), or a group or a time.
    """
    text_columns = columns_named("--text", question.text, table)
    if len(text_columns) > 2:
        raise UserError(f"--text {question.text}: expected one column or two, found {len(text_columns)}")
    label_names: tuple[str, ...] = ()
    has_labels = question.label in table.columns or set(map(str.strip, question.label.split(","))) <= {*table.columns}
    if labelled or has_labels:
        label_names = columns_named("--label", question.label, table)
    if taken := [name for name in label_names if name in text_columns]:
        raise UserError(f"--label {question.label}: expected another column than --text, found {taken[0]}")
    extra = {"--id": question.id}
    extra |= {"--group": question.group, "--time": question.time} if divided else {}
    extra_names = {flag: column_named(flag, name, table) for flag, name in extra.items() if name is not None}
    texts: list[tuple[str, ...]] = []
    numbers: list[int] = []
    label_cells: list[tuple[Cell, ...]] = []
    others: dict[str, list[Cell]] = {"--id": [], "--group": [], "--time": []}
    empty: list[int] = []
    count = unlabelled = 0
    keep_na = table.reading.keep_na
    for count, cells in enumerate(table.rows((*text_columns, *label_names, *extra_names.values())), start=1):
        left = iter(cells)
        row = tuple(text_of(table, count, name, next(left)) for name in text_columns)
        own_labels = tuple(next(left) for _ in label_names)
        if not all(text.strip() for text in row):
            empty.append(count)
            continue
        if question.kind != "several":  # whose commas are between labels
            own_labels = tuple(_number(table, cell) for cell in own_labels)
        if question.skip_empty and label_names and all(is_missing(cell, keep_na) for cell in own_labels):
            unlabelled += 1
            continue
        texts.append(row)
        numbers.append(count)
        label_cells.append(own_labels)
        for flag, cell in zip(extra_names, left, strict=True):
            if is_missing(cell, keep_na) and flag != "--id":
                raise UserError(f"{flag}: {table.place(count)}: expected a value, found an empty cell")
            if flag == "--id":
                cell = id_of(table, count, extra_names[flag], cell)
            others[flag].append(_number(table, cell) if flag == "--time" else cell)
    if empty and not question.skip_empty:
        raise UserError(empty_texts(table, len(empty), count, empty[0]))
    if not texts:
        raise UserError(f"{table.name}: expected rows with text, found {number_of(count, 'row')} and none with text")
    if not labelled and all(is_missing(cell, keep_na) for cells in label_cells for cell in cells):
        label_names = ()  # as tables to be predicted have it
    labels = None
    if label_names:
        labels = LabelCells(table.name, label_names, question.separator, numbers, label_cells, keep_na)
    ids = [str(each) for each in others["--id"] or numbers]
    left_out = len(empty) + unlabelled
    return Rows(table, text_columns, labels, texts, ids, numbers, others["--group"], others["--time"], left_out)


def _number(table: Table, cell: Cell) -> Cell:
    """A number that is written with a decimal comma, where the table has such, as one with a point."""
    if table.decimal_comma and isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell.strip()):
        return cell.strip().replace(",", ".")
    return cell
