"""Tables that people bring: CSV, TSV, JSON Lines, Parquet and Excel files, read row by row in bounded memory; arrays of
JSON, read as a whole; and folders with a folder of text files for each class.
"""

from __future__ import annotations

import csv
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError, first_line
from nystromformer.files.reading import half_character
from nystromformer.tasks.documents.reading import Reading
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

Cell = Any
"""Text of CSV and TSV; of other formats text, a number, a truth value, a date, a list of these, or None."""
Row = tuple[Cell, ...]
_LONGEST = 1 << 28
"""Characters of a cell, at most; csv's own limit is below that of long documents."""
_FIRST_OBJECTS = 1000
"""Whose keys are the columns of JSON Lines."""
_PARQUET_ROWS, _PARQUET_BYTES = 256, 1 << 20
"""Rows, which are whole documents, and bytes of a column that are read at a time: row groups may be as large as the
file.
"""
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*_DELIMITERS, ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")


@dataclass(frozen=True)
class Table:
    """A table that can be read any number of times.

    Args:
        name: what messages call it.
        columns: in their order; none without a name.
        read: gives the cells of the named columns, row by row; for a row that is none what is wrong with it.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row | UserError]]
    decimal_comma: bool = False
    """Whether 3,5 is a number, as where semicolons stand between cells."""

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The cells of these columns, row by row.

        Raises:
            UserError: a column is not there (lists those that are), or a row is none; names the row.
        """
        return map(_row_or_raise, self.rows_or_errors(columns))

    def rows_or_errors(self, columns: Sequence[str]) -> Iterator[Row | UserError]:
        """The same, but for a row that has not the columns' cells an error that says so: the rows after it follow."""
        for column in columns:
            if self.columns.count(column) != 1:
                raise UserError(
                    f"{self.name}: expected one column {column}, found {self.columns.count(column)}; it has the "
                    f"columns {first_names(self.columns)}"
                )
        return self.read(columns)

    def place(self, row: int) -> str:
        """What messages call a row; they count from 1, without the header."""
        return f"{self.name}, row {row:,}"


def _row_or_raise(row: Row | UserError) -> Row:
    if isinstance(row, UserError):
        raise row
    return row


def columns_named(flag: str, text: str, table: Table) -> tuple[str, ...]:
    """The columns that a flag names: one, or several separated by commas.

    Raises:
        UserError: one is not there; lists those that are.
    """
    if text in table.columns:  # whose name may have a comma
        return (text,)
    names = tuple(part.strip() for part in text.split(","))
    missing = [name for name in names if name not in table.columns]
    if missing or len(set(names)) < len(names):
        twice = "each once" if not missing else f"found no {first_names(missing)}"
        raise UserError(
            f"{flag} {text}: expected columns of {table.name}, {twice}; it has the columns {first_names(table.columns)}"
        )
    return names


def column_named(flag: str, text: str, table: Table) -> str:
    """The one column that a flag names.

    Raises:
        UserError: it is not there, or there are several.
    """
    names = columns_named(flag, text, table)
    if len(names) > 1:
        raise UserError(f"{flag} {text}: expected one column, found {len(names)}")
    return names[0]


def open_table(
    path: Path,
    reading: Reading = Reading(),  # noqa: B008  # immutable
    header: Sequence[str] | None = None,
    is_quoted: bool = True,
) -> Table:
    """A table in a file whose name ends in one of ENDINGS, or in a folder.

    Args:
        reading: what the file does not say.
        header: the columns of a CSV or TSV file that has no header.
        is_quoted: of CSV and TSV; else a quote is text, as in GLUE's files.

    Raises:
        UserError: there is no such file, its name ends otherwise, or it does not begin as a table.
    """
    ending = path.suffix.lower()
    if path.is_dir():
        return _open_folder(path, reading)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if ending not in ENDINGS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(ENDINGS)}, found {ending or 'no ending'}")
    if reading.sheet is not None and ending != ".xlsx":
        raise UserError(f"{path}: expected a file that ends in .xlsx with --sheet")
    if ending in _DELIMITERS:
        return _open_delimited(path, reading, header, is_quoted)
    if ending == ".parquet":
        arrow = importlib.import_module("pyarrow")
        return parquet_table(str(path), lambda: arrow.OSFile(str(path)))
    if ending == ".xlsx":
        return _open_excel(path, reading.sheet)
    return _open_json_array(path, reading) if ending == ".json" else _open_json_lines(path, reading)


def _open_delimited(path: Path, reading: Reading, given_header: Sequence[str] | None, is_quoted: bool) -> Table:
    delimiter = _DELIMITERS[path.suffix.lower()]
    with reading.open(path) as file:
        top = file.readline(_LONGEST)
    if delimiter == "," and "," not in top and ";" in top:
        logger.info("%s: its cells are separated by semicolons", path)
        delimiter = ";"

    def records() -> Iterator[list[str]]:
        """The header first; empty lines are none."""
        # A quotation mark within cells that are not quoted is text, as are the characters at which csv ends lines.
        with reading.open(path, newline="" if is_quoted else "\n") as file:
            if not is_quoted:
                yield from (line.rstrip("\r\n").split(delimiter) for line in file if line.strip("\r\n"))
                return
            csv.field_size_limit(_LONGEST)
            number = 0
            try:
                for record in filter(None, csv.reader(file, delimiter=delimiter, strict=True)):
                    yield record
                    number += 1
            except csv.Error as error:
                reason = "it ends within quotes: the file ends early" if "unexpected end" in str(error) else error
                raise UserError(f"{path}, row {number:,}: {reason}, or a quote within a cell is not doubled") from None

    first = next(records(), None)
    if first is None:
        raise UserError(f"{path}: expected a header and rows, found an empty file")
    if half_character("".join(first)) is not None:
        raise UserError(f"{path}: {of_another_encoding(reading.encoding)}")
    header = [name.strip() for name in given_header or first]

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        places = [header.index(column) for column in columns]
        for number, record in enumerate(islice(records(), int(given_header is None), None), start=1):
            if len(record) == len(header):
                yield tuple(record[place] for place in places)
                continue
            yield UserError(
                f"{path}, row {number:,}: expected {number_of(len(header), 'cell')}, found {len(record)}: the file "
                f"ends early, or a cell holds a delimiter{' and is not quoted' if is_quoted else ''}"
            )

    # Tables that pandas wrote begin with a column of row numbers without a name.
    return Table(str(path), tuple(filter(None, header)), read, decimal_comma=delimiter == ";")


def _open_folder(path: Path, reading: Reading) -> Table:
    """Text files in a folder for each class, as IMDB's are: columns text, label and file."""
    files = sorted(path.glob("*/*.txt"))
    if not files:
        raise UserError(f"{path}: expected a folder for each class with .txt files in it, found none")

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for file in files:
            with reading.open(file) as content:
                text = content.read()
            if half_character(text) is not None:
                yield UserError(f"{file}: {of_another_encoding(reading.encoding)}")
                continue
            cells = {"text": text, "label": file.parent.name, "file": f"{file.parent.name}/{file.name}"}
            yield tuple(cells[column] for column in columns)

    return Table(str(path), ("text", "label", "file"), read)


def of_another_encoding(encoding: str = "utf-8") -> str:
    """What to say of text with a byte that its encoding has not."""
    return f"expected text in {encoding}, found another encoding: convert it, or name its --encoding, such as cp1252"


def _open_excel(path: Path, sheet: str | None) -> Table:
    try:
        openpyxl = importlib.import_module("openpyxl")
    except ModuleNotFoundError:
        raise UserError(
            f"{path}: Excel files need openpyxl, which is not installed. Run `pip install openpyxl`"
        ) from None

    def rows() -> Iterator[tuple[Cell, ...]]:
        try:
            book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        except Exception as error:  # openpyxl raises zipfile's, xml's and its own
            raise UserError(f"{path}: expected an Excel file, found something else: {error}") from None
        try:
            names = book.sheetnames
            if (sheet is None and len(names) > 1) or (sheet is not None and sheet not in names):
                choice = f"--sheet with one of {first_names(names)}"
                raise UserError(f"{path}: expected a single sheet or, for run_classify.py, {choice}")
            page = book[sheet or names[0]]
            page.reset_dimensions()  # as some programs write them too small, and rows beyond them would be left out
            for row in page.iter_rows(values_only=True):
                if any(cell is not None for cell in row):
                    yield row
        finally:
            book.close()

    first = next(rows(), None)
    if first is None:
        raise UserError(f"{path}: expected a header and rows, found an empty sheet")
    header = ["" if cell is None else str(cell).strip() for cell in first]

    def read(columns: Sequence[str]) -> Iterator[Row]:
        places = [header.index(column) for column in columns]
        for row in islice(rows(), 1, None):
            yield tuple(row[place] if place < len(row) else None for place in places)

    return Table(str(path), tuple(filter(None, header)), read)


def _open_json_array(path: Path, reading: Reading) -> Table:
    """An array of objects. A file of other content is read as JSON Lines."""
    with reading.open(path) as file:
        content = file.read()
    if not content.lstrip().startswith("["):
        return _open_json_lines(path, reading)
    try:
        values = json.loads(content)
    except ValueError as error:
        raise UserError(f"{path}: expected an array of JSON objects: {error}") from None
    return _table_of_objects(path, lambda: iter(values))


def _open_json_lines(path: Path, reading: Reading) -> Table:
    def objects() -> Iterator[Cell]:
        with reading.open(path, newline="\n") as file:
            for number, line in enumerate(filter(str.strip, file), start=1):
                try:
                    yield json.loads(line)
                except ValueError as error:
                    early = "" if line.endswith("\n") else ": the file ends early"
                    raise UserError(
                        f"{path}, row {number:,}: expected an object of JSON, found {line!r:.40} ({error}){early}"
                    ) from None

    return _table_of_objects(path, objects)


def _table_of_objects(path: Path, objects: Callable[[], Iterator[Cell]]) -> Table:
    """Not all of them need have each key: what one has not is empty."""

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for number, value in enumerate(objects(), start=1):
            if isinstance(value, dict):
                yield tuple(map(value.get, columns))
            else:
                yield UserError(f"{path}, row {number:,}: expected an object of JSON, found {value!r:.40}")

    keys: Iterable[str] = (
        key for value in islice(objects(), _FIRST_OBJECTS) if isinstance(value, dict) for key in value
    )
    columns = tuple(dict.fromkeys(keys))
    if not columns:
        raise UserError(f"{path}: expected objects of JSON, in each line or in an array, found none")
    return Table(str(path), columns, read)


def parquet_table(name: str, open_file: Callable[[], Any]) -> Table:
    """A table in a Parquet file.

    Args:
        name: what messages call it.
        open_file: gives a file of pyarrow.

    Raises:
        UserError: it is no Parquet file, or cannot be read.
    """
    # imported here: it takes a second
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    failures = (arrow.ArrowException, OSError, UnicodeDecodeError)
    try:
        with open_file() as content, parquet.ParquetFile(content) as file:
            names = tuple(file.schema_arrow.names)
    except failures as error:
        raise parquet_refusal(name, error) from None

    def read(columns: Sequence[str]) -> Iterator[Row]:
        try:
            with open_file() as content, parquet.ParquetFile(content, buffer_size=_PARQUET_BYTES) as file:
                for batch in file.iter_batches(_PARQUET_ROWS, columns=list(dict.fromkeys(columns))):
                    cells = {name: list(map(_plain, column)) for name, column in batch.to_pydict().items()}
                    yield from zip(*(cells[column] for column in columns), strict=True)
        except failures as error:
            raise parquet_refusal(name, error) from None

    return Table(name, names, read)


def parquet_refusal(name: str, error: Exception) -> UserError:
    """What to say of a file that could not be read as Parquet."""
    reason = first_line(error)
    if "AWS Error" in reason:  # of no class of its own
        return UserError(f"{name}: cannot be read: {reason}")
    return UserError(f"{name}: expected a Parquet file, found a damaged one or one that ends early: {reason}")


def _plain(cell: Cell) -> Cell:
    """A decimal number as one of Python's own."""
    if not isinstance(cell, Decimal) or not cell.is_finite():
        return cell
    return int(cell) if cell == cell.to_integral_value() else float(cell)
