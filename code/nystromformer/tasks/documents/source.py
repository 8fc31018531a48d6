"""The rows of a table as texts and labels: where it is, and which columns are what."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nystromformer.data.hub import load_split
from nystromformer.errors import UserError, first_line
from nystromformer.files.reading import half_character
from nystromformer.tasks.documents.label_cells import LabelCells, is_missing
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.table import (
    Cell,
    Row,
    Table,
    column_named,
    columns_named,
    of_another_encoding,
    open_table,
)
from nystromformer.wording import number_of

if TYPE_CHECKING:
    from nystromformer.tasks.documents.question import Question

HUB = "hub:"
_HUB_NAME = re.compile(r"hub:(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+))?")
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


def open_place(place: str, default: Path, split: str, reading: Reading = Reading()) -> Table:  # noqa: B008  # immutable
    """The table that a flag names: `hub:NAME`, or a file.

    Args:
        default: where relative names are that are not in the current folder.
        split: of the hub's, where the place names none.
        reading: as `open_table` takes it.

    Raises:
        UserError: it is not there, or no table.
    """
    if place.startswith(HUB):
        return _open_hub(place, split)
    path = Path(place)
    return open_table(default / path if not path.exists() and (default / path).exists() else path, reading)


def _open_hub(place: str, split: str) -> Table:
    """The table that `hub:NAME`, `hub:NAME:SPLIT` or `hub:NAME@CONFIG:SPLIT` names, with classes by their names."""
    match = _HUB_NAME.fullmatch(place)
    if match is None:
        raise UserError(f"{place}: expected hub:NAME, hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT")
    try:
        data = load_split(match["name"], match["config"], match["split"] or split)
    except Exception as error:  # the library raises whatever its network and file system layers raise
        raise UserError(
            f"{place}: cannot be loaded from the hub: {first_line(error)}. It needs a network, or the table in the "
            "library's cache; without these, name a file"
        ) from error
    names = {name: feature.names for name, feature in data.features.items() if hasattr(feature, "names")}

    def cell_of(cell: Any, column: str) -> Cell:
        if column not in names or not isinstance(cell, int):
            return cell
        return names[column][cell] if cell >= 0 else None

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for row in data.select_columns(list(dict.fromkeys(columns))):
            yield tuple(cell_of(row[column], column) for column in columns)

    return Table(place, tuple(data.column_names), read)


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
    for count, cells in enumerate(table.rows((*text_columns, *label_names, *extra_names.values())), start=1):
        left = iter(cells)
        row = tuple(text_of(table, count, name, next(left)) for name in text_columns)
        own_labels = tuple(next(left) for _ in label_names)
        if not all(text.strip() for text in row):
            empty.append(count)
            continue
        if question.kind != "several":  # whose commas are between labels
            own_labels = tuple(_number(table, cell) for cell in own_labels)
        if question.skip_empty and label_names and all(map(is_missing, own_labels)):
            unlabelled += 1
            continue
        texts.append(row)
        numbers.append(count)
        label_cells.append(own_labels)
        for flag, cell in zip(extra_names, left, strict=True):
            if is_missing(cell) and flag != "--id":
                raise UserError(f"{flag}: {table.place(count)}: expected a value, found an empty cell")
            if flag == "--id":
                cell = id_of(table, count, extra_names[flag], cell)
            others[flag].append(_number(table, cell) if flag == "--time" else cell)
    if empty and not question.skip_empty:
        raise UserError(empty_texts(table, len(empty), count, empty[0]))
    if not texts:
        raise UserError(f"{table.name}: expected rows with text, found {number_of(count, 'row')} and none with text")
    if not labelled and all(is_missing(cell) for cells in label_cells for cell in cells):
        label_names = ()  # as tables to be predicted have it
    labels = LabelCells(table.name, label_names, question.separator, numbers, label_cells) if label_names else None
    ids = [str(each) for each in others["--id"] or numbers]
    left_out = len(empty) + unlabelled
    return Rows(table, text_columns, labels, texts, ids, numbers, others["--group"], others["--time"], left_out)


def warn_of_repeated_ids(rows: Rows, column: str | None) -> list[str]:
    """A warning of a table whose ids, by which prediction files name its rows, do not tell the rows apart.

    Args:
        column: of the ids; None: they are the rows' numbers, which do.
    """
    repeats = len(rows) - len(set(rows.ids))
    if column is None or not repeats:
        return []
    first = Counter(rows.ids).most_common(1)[0][0]
    return [
        f"{rows.table.name}: {repeats:,} of {number_of(len(rows), 'row')} repeat an id, such as {first!r:.60}: "
        f"prediction files cannot tell these rows apart; name another column than --id {column}, or leave --id out"
    ]


def _number(table: Table, cell: Cell) -> Cell:
    """A number that is written with a decimal comma, where the table has such, as one with a point."""
    if table.decimal_comma and isinstance(cell, str) and _DECIMAL_COMMA.fullmatch(cell.strip()):
        return cell.strip().replace(",", ".")
    return cell


def empty_texts(table: Table, empty: int, count: int, first: int) -> str:
    """What is said of texts that have nothing in them."""
    are = "is" if empty == 1 else "are"
    return (
        f"{table.name}: {empty:,} of {number_of(count, 'text')} {are} empty, the first of them in row {first:,}: fill "
        "them in, or add --skip_empty"
    )


def text_of(table: Table, row: int, column: str, cell: Cell) -> str:
    """A cell as text; nothing is an empty one.

    Raises:
        UserError: it is none.
    """
    if cell is None or (isinstance(cell, float) and cell != cell):
        return ""
    if not isinstance(cell, str):
        raise UserError(f"{table.place(row)}: expected text in {column}, found {cell!r:.40}")
    if half_character(cell) is not None:
        raise UserError(f"{table.place(row)}, {column}: {of_another_encoding()}")
    return cell


def id_of(table: Table, row: int, column: str, cell: Cell) -> str:
    """A row's id as text, which may be a number in the table; nothing is an empty one.

    Raises:
        UserError: it is no text.
    """
    return text_of(table, row, column, cell if isinstance(cell, str) or is_missing(cell) else str(cell))
