"""The rows of a table as texts and labels: which columns are what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.tasks.documents.hub import PREFIX, open_hub
from nystromformer.tasks.documents.label_cells import LabelCells, is_missing
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.table import Cell, Table, column_named, columns_named, open_table
from nystromformer.wording import number_of

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
    """Rows without text."""
    unlabelled: int = 0
    """Rows without a label that were left out."""

    def __len__(self) -> int:
        return len(self.texts)


def open_place(
    place: str,
    folder: Path | None,
    default: Path,
    split: str,
    reading: Reading = Reading(),  # noqa: B008  # immutable
) -> Table:
    """The table that a flag names: `hub:NAME`, or a file.

    Args:
        folder: by --documents, in which relative names are; None: here, or else in `default`.
        default: where config.json says that documents are.
        split: of the hub's, where the place names none.
        reading: as `open_table` takes it.

    Raises:
        UserError: it is not there, or no table.
    """
    if place.startswith(PREFIX):
        if reading.given:
            raise UserError(f"{reading.given[0]}: expected a file with it, found {place}")
        return open_hub(place, split)
    path = Path(place)
    if folder is not None:
        return open_table(folder / path, reading)
    return open_table(default / path if not path.exists() and (default / path).exists() else path, reading)


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
    if labelled or _has_all(table, question.label):
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
        if not all(text.strip() for text in row):
            empty.append(count)
            continue
        own_labels = tuple(next(left) for _ in label_names)
        if question.kind != "several":  # whose commas are between labels
            own_labels = tuple(_number(table, cell) for cell in own_labels)
        if question.skip_unlabelled and label_names and all(map(is_missing, own_labels)):
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
    if (
        label_names
        and not labelled
        and not question.skip_unlabelled
        and all(is_missing(cell) for cells in label_cells for cell in cells)
    ):
        # As tables to be predicted have it, which shall have their labels from others.
        label_names = ()
    labels = LabelCells(table.name, label_names, question.separator, numbers, label_cells) if label_names else None
    ids = [str(each) for each in others["--id"] or numbers]
    apart = others["--group"], others["--time"]
    return Rows(table, text_columns, labels, texts, ids, numbers, *apart, len(empty), unlabelled)


def warn_of_repeated_ids(rows: Rows, column: str | None) -> list[str]:
    """A warning of a table whose ids, by which prediction files name its rows, do not tell the rows apart.

    Args:
        column: of the ids; None: they are the rows' numbers, which do.
    """
    if column is None or len(set(rows.ids)) == len(rows):
        return []
    first_rows: dict[str, int] = {}
    repeats = [
        (name, first, number)
        for name, number in zip(rows.ids, rows.numbers, strict=True)
        if (first := first_rows.setdefault(name, number)) != number
    ]
    name, first, second = repeats[0]
    has = "has" if len(repeats) == 1 else "have"
    return [
        f"{rows.table.name}: {len(repeats):,} of {number_of(len(rows), 'row')} {has} the id of an earlier row, first "
        f"{name!r:.60} in rows {first:,} and {second:,}: prediction files cannot tell these rows apart; name another "
        f"column than --id {column}, or leave --id out"
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
    if (half := half_character(cell)) is not None:
        raise UserError(f"{table.place(row)}: expected text in {column}, found half of a surrogate pair at {half}")
    return cell


def id_of(table: Table, row: int, column: str, cell: Cell) -> str:
    """A row's id as text, which may be a number in the table; nothing is an empty one.

    Raises:
        UserError: it is no text.
    """
    return text_of(table, row, column, cell if isinstance(cell, str) or is_missing(cell) else str(cell))


def _has_all(table: Table, text: str) -> bool:
    return text in table.columns or all(part.strip() in table.columns for part in text.split(","))
