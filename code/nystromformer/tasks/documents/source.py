"""The rows of a table as texts and labels: where it is, and which columns are what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell, is_missing, text_of
from nystromformer.tabular.table import Table, columns_named
from nystromformer.tasks.documents.labels import LabelCells
from nystromformer.wording import number_of

if TYPE_CHECKING:
    from nystromformer.tasks.documents.question import Question


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
    group: list[Cell]
    time: list[Cell]
    left_out: int
    """Rows without text, or without a label."""


def read_rows(table: Table, question: Question, separator: str, labelled: bool = True, divided: bool = False) -> Rows:
    """Read a table.

    Args:
        labelled: whether it must have labels; else they are read where it has their columns.
        divided: whether the columns to divide it by (group, time) are read.
    """
    text_columns = columns_named("--text", question.text, table, most=2)
    label_names: tuple[str, ...] = ()
    has_labels = question.label in table.columns or set(map(str.strip, question.label.split(","))) <= {*table.columns}
    if labelled or has_labels:
        label_names = columns_named("--label", question.label, table)
    if taken := [name for name in label_names if name in text_columns]:
        raise UserError(f"--label {question.label}: expected another column than --text, found {taken[0]}")
    extra = {"--id": question.id}
    extra |= {"--group": question.group, "--time": question.time} if divided else {}
    extra_names = {flag: columns_named(flag, name, table, most=1)[0] for flag, name in extra.items() if name}
    texts: list[tuple[str, ...]] = []
    numbers: list[int] = []
    label_cells: list[tuple[Cell, ...]] = []
    others: dict[str, list[Cell]] = {"--id": [], "--group": [], "--time": []}
    empty: list[int] = []
    count, keep_na = 0, table.reading.keep_na
    for count, cells in enumerate(table.rows((*text_columns, *label_names, *extra_names.values())), start=1):
        left = iter(cells)
        row = tuple(text_of(table, count, name, next(left)) for name in text_columns)
        own_labels = tuple(next(left) for _ in label_names)
        is_empty = not all(text.strip() for text in row)
        if is_empty or (question.skip_empty and label_names and all(is_missing(cell, keep_na) for cell in own_labels)):
            empty += [count] if is_empty else []
            continue
        texts.append(row)
        numbers.append(count)
        label_cells.append(own_labels)
        for flag, cell in zip(extra_names, left, strict=True):
            if flag == "--id":
                cell = text_of(table, count, extra_names[flag], cell, as_text=True)
            elif is_missing(cell, keep_na):
                raise UserError(f"{flag}: {table.place(count)}: expected a value, found an empty cell")
            others[flag].append(cell)
    if empty and not question.skip_empty:
        raise UserError(
            f"{table.name}: {len(empty):,} of {number_of(count, 'row')} have no text, the first of them row "
            f"{empty[0]:,}: fill it in, or add --skip_empty to leave such rows out"
        )
    if not texts:
        raise UserError(f"{table.name}: expected rows with text, found none")
    if not labelled and all(is_missing(cell, keep_na) for cells in label_cells for cell in cells):
        label_names = ()  # as tables to be predicted have it
    labels = LabelCells(table.name, label_names, separator, numbers, label_cells, keep_na) if label_names else None
    ids = others["--id"] or list(map(str, numbers))
    return Rows(table, text_columns, labels, texts, ids, others["--group"], others["--time"], count - len(texts))
