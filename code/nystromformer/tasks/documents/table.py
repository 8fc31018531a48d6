"""Tables that people bring: CSV, TSV, JSON Lines, Parquet and Excel files, read row by row in bounded memory; arrays of
JSON, read as a whole; and folders with a folder of text files for each class.
"""

from __future__ import annotations

import codecs
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
from nystromformer.files.reading import json_problem, read_lines
from nystromformer.tasks.documents.reading import Reading
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

Cell = Any
"""Text of CSV and TSV; of other formats text, a number, a truth value, a date, a list of these, or None."""
Row = tuple[Cell, ...]
LONGEST = 1 << 28
"""Bytes of a line, and characters of a cell, at most."""
_FIRST_OBJECTS = 1000
"""Whose keys are the columns of JSON Lines."""
_PARQUET_ROWS = 256
"""Read at a time: they are whole documents."""
_PARQUET_BYTES = 1 << 20
"""Of a column that are read at a time: row groups may be as large as the file."""


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
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise UserError(
                f"{self.name}: expected {_columns(missing)}, found none of that name; it has {_columns(self.columns)}"
            )
        for column in columns:
            if self.columns.count(column) > 1:
                raise UserError(f"{self.name}: expected one column {column}, found {self.columns.count(column)}")
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
        raise UserError(f"{flag} {text}: expected columns of {table.name}, {twice}; it has {_columns(table.columns)}")
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


def _columns(names: Sequence[str]) -> str:
    noun = "the column" if len(names) == 1 else "the columns"
    return f"{noun} {first_names(names)}"


def open_table(path: Path, reading: Reading = Reading(), header: Sequence[str] | None = None) -> Table:  # noqa: B008
    """A table in a file whose name ends in one of ENDINGS, or in a folder.

    Args:
        reading: what the file does not say.
        header: the columns of a CSV or TSV file that has no header.

    Raises:
        UserError: there is no such file, its name ends otherwise, or it does not begin as a table; or `reading` says
            something that does not go with its format.
    """
    if path.is_dir():
        return _open_folder(path, reading)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(ENDINGS)}, found {ending or 'no ending'}")
    for flag in reading.given:
        if ending not in _ENDINGS_OF[flag]:
            raise UserError(f"{path}: expected a file that ends in {', '.join(_ENDINGS_OF[flag])} with {flag}")
    if not path.is_file():
        raise UserError(f"{path}: expected a file, found something else" if path.exists() else f"{path}: no such file")
    try:
        if ending in _DELIMITERS:
            return _open_delimited(path, reading, header)
        if ending == ".parquet":
            arrow = importlib.import_module("pyarrow")
            return parquet_table(str(path), lambda: arrow.OSFile(str(path)))
        if ending == ".xlsx":
            return _open_excel(path, reading.sheet)
        return _open_json_array(path, reading) if ending == ".json" else _open_json_lines(path, reading)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open_delimited(path: Path, reading: Reading, given_header: Sequence[str] | None) -> Table:
    def first_record(delimiter: str) -> list[str]:
        with path.open("rb") as file:
            first = next(_records(file, path, delimiter, reading), None)
        if first is None:
            raise UserError(f"{path}: expected a header and rows, found an empty file")
        return first

    def count_cells(delimiter: str) -> int:
        try:
            return len(first_record(delimiter))
        except UserError:  # as of "text";"label" by commas
            return 0

    delimiter, quotes = reading.delimiter or _DELIMITERS[path.suffix.lower()], not reading.no_quotes
    if reading.delimiter is None and delimiter == "," and count_cells(",") < 2 <= count_cells(";"):
        logger.info("%s: its cells are separated by semicolons", path)
        delimiter = ";"
    first = first_record(delimiter)
    header = [name.strip() for name in given_header or first]

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        places = [header.index(column) for column in columns]
        with path.open("rb") as file:
            records = _records(file, path, delimiter, reading)
            if given_header is None:
                next(records, None)
            for number, record in enumerate(records, start=1):
                if len(record) == len(header):
                    yield tuple(record[place] for place in places)
                    continue
                unquoted = "a cell holds a delimiter" + (" and is not quoted" if quotes else "")
                yield UserError(
                    f"{path}, row {number:,}: expected {number_of(len(header), 'cell')}, found {len(record)}: the "
                    f"file ends early, or {unquoted}"
                )

    # Tables that pandas wrote begin with a column of row numbers without a name.
    return Table(str(path), tuple(filter(None, header)), read, decimal_comma=delimiter == ";")


def _records(file: Any, path: Path, delimiter: str, reading: Reading) -> Iterator[list[str]]:
    """The records of an open file, the header first; empty lines are none.

    Raises:
        UserError: a row is not of the encoding or ends early; names the row.
    """
    quotes = not reading.no_quotes
    csv.field_size_limit(LONGEST)
    number = 0

    def where() -> str:
        return f"{path}, row {number:,}" if number else f"{path}, its header"

    def lines() -> Iterator[str]:
        encoding = "utf-8-sig" if reading.encoding == "utf-8" else reading.encoding
        for line in read_lines(file, path, LONGEST):
            try:
                yield line.decode(encoding)
            except UnicodeDecodeError as error:
                if not number and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise UserError(f"{path}: expected UTF-8, found UTF-16: convert it, such as by iconv") from None
                found = f"the byte 0x{error.object[error.start]:02x}"
                raise UserError(f"{where()}: {_of_another_encoding(path, reading, found)}") from None
            encoding = reading.encoding

    if not quotes:
        for line in lines():
            if line.strip("\r\n"):
                yield line.removesuffix("\n").removesuffix("\r").split(delimiter)
                number += 1
        return
    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        for record in filter(None, reader):
            yield record
            number += 1
    except csv.Error as error:
        reason = "it ends within quotes: the file ends early" if "unexpected end" in str(error) else str(error)
        raise UserError(
            f"{where()}: {reason}, or a quote is not doubled. Add --no_quotes if the file quotes no cells"
        ) from None


def _of_another_encoding(path: Path, reading: Reading, found: str) -> str:
    """What to say of a file with a byte that its encoding has not."""
    advice = "convert it, such as by iconv"
    if reading.encoding == "utf-8" and _is_cp1252(path):
        advice = "it is probably cp1252 (Windows): convert it, or, for your own tables, add --encoding cp1252"
    name = "UTF-8" if reading.encoding == "utf-8" else reading.encoding
    return f"expected {name}, found {found}: {advice}"


def _is_cp1252(path: Path) -> bool:
    """Whether the file's first megabyte could be of that encoding, with letters beyond ASCII."""
    with path.open("rb") as file:
        content = file.read(1 << 20)
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        return False
    beyond = [letter for letter in text if ord(letter) > 127]
    return bool(beyond) and sum(map(str.isalpha, beyond)) >= len(beyond) / 2


def _open_folder(path: Path, reading: Reading) -> Table:
    """Text files in a folder for each class, as IMDB's are: columns text, label and file."""
    if wrong := [flag for flag in reading.given if flag != "--encoding"]:
        raise UserError(f"{path}: expected a file with {wrong[0]}, found a folder")
    files = [file for folder in sorted(path.iterdir()) if folder.is_dir() for file in sorted(folder.glob("*.txt"))]
    files = [file for file in files if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    if not files:
        raise UserError(f"{path}: expected a folder for each class with .txt files in it, found none")

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for file in files:
            try:
                if file.stat().st_size > LONGEST:
                    yield UserError(f"{file}: expected at most {LONGEST >> 20} MiB of text")
                    continue
                text = file.read_text(encoding="utf-8-sig" if reading.encoding == "utf-8" else reading.encoding)
            except UnicodeDecodeError as error:
                found = f"the byte 0x{error.object[error.start]:02x}"
                yield UserError(f"{file}: {_of_another_encoding(file, reading, found)}")
                continue
            except OSError as error:
                yield UserError(f"{file}: cannot be read: {error.strerror or error}")
                continue
            cells = {"text": text, "label": file.parent.name, "file": f"{file.parent.name}/{file.name}"}
            yield tuple(cells[column] for column in columns)

    return Table(str(path), ("text", "label", "file"), read)


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
            if sheet is None and len(names) > 1:
                raise UserError(f"{path}: expected --sheet, as it has several sheets: {first_names(names)}")
            if sheet is not None and sheet not in names:
                raise UserError(f"--sheet {sheet!r:.60}: expected one of {first_names(names)} of {path}")
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
        found = rows()
        next(found)
        for row in found:
            yield tuple(row[place] if place < len(row) else None for place in places)

    return Table(str(path), tuple(filter(None, header)), read)


def _open_json_array(path: Path, reading: Reading) -> Table:
    """An array of objects. A whole file of another content than an array is read as JSON Lines."""
    content = path.read_bytes()
    if not content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _open_json_lines(path, reading)
    try:
        values = json.loads(content.decode("utf-8-sig" if reading.encoding == "utf-8" else reading.encoding))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected an array of JSON objects, found {json_problem(error)}") from None
    if not values or not isinstance(values[0], dict):
        found = repr(values[0])[:40] if values else "an empty one"
        raise UserError(f"{path}: expected an array of JSON objects, found {found}")

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for number, value in enumerate(values, start=1):
            yield _cells_of_object(path, number, value, columns)

    return Table(str(path), _keys_of(values), read)


def _keys_of(values: Iterable[Cell]) -> tuple[str, ...]:
    """The columns of objects, of which not all need have each: what one has not is empty."""
    return tuple(dict.fromkeys(key for value in values if isinstance(value, dict) for key in value))


def _cells_of_object(path: Path, number: int, value: Cell, columns: Sequence[str]) -> Row | UserError:
    if not isinstance(value, dict):
        return UserError(f"{path}, row {number:,}: expected an object of JSON, found {value!r:.40}")
    return tuple(map(value.get, columns))


def _open_json_lines(path: Path, reading: Reading) -> Table:
    def objects() -> Iterator[dict[str, Cell]]:
        number = 0
        with path.open("rb") as file:
            for line in read_lines(file, path, LONGEST):
                if not line.strip():
                    continue
                number += 1
                try:
                    is_start = number == 1 and reading.encoding == "utf-8"
                    value = json.loads(line.decode("utf-8-sig" if is_start else reading.encoding))
                except (ValueError, RecursionError) as error:
                    early = "" if line.endswith(b"\n") else ": the file ends early"
                    raise UserError(
                        f"{path}, row {number:,}: expected an object of JSON, found {json_problem(error)}{early}"
                    ) from None
                if not isinstance(value, dict):
                    raise UserError(f"{path}, row {number:,}: expected an object of JSON, found {value!r:.40}")
                yield value

    first = list(islice(objects(), _FIRST_OBJECTS))
    if not first:
        raise UserError(f"{path}: expected an object of JSON in each line, found an empty file")

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for number, value in enumerate(objects(), start=1):
            yield _cells_of_object(path, number, value, columns)

    return Table(str(path), _keys_of(first), read)


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
        except (OverflowError, ValueError) as error:
            # Such as a time that Python has no number for.
            raise UserError(f"{name}: a cell of {_columns(list(columns))} cannot be read: {error}") from None

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


_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*_DELIMITERS, ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")
_ENDINGS_OF = {
    "--no_quotes": tuple(_DELIMITERS),
    "--delimiter": tuple(_DELIMITERS),
    "--encoding": (*_DELIMITERS, ".jsonl", ".ndjson", ".json"),
    "--sheet": (".xlsx",),
}
"""Of the files that a flag of Reading goes with."""
