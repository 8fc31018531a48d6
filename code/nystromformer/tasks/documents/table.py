"""Tables that people bring: CSV, TSV, JSON Lines and Parquet files, read row by row in bounded memory."""

from __future__ import annotations

import codecs
import csv
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.reading import json_problem, read_lines
from nystromformer.wording import first_names, number_of

Cell = Any
"""Text of CSV and TSV; of other formats text, a number, a truth value, a date, a list of these, or None."""
Row = tuple[Cell, ...]
LONGEST = 1 << 28
"""Bytes of a line, and characters of a cell, at most."""
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


def open_table(path: Path, quotes: bool = True, header: Sequence[str] | None = None) -> Table:
    """A table in a file whose name ends in one of ENDINGS.

    Args:
        quotes: whether cells of CSV and TSV may stand in quotes; else a quote is a character like any other, as in
            GLUE's files.
        header: the columns of a CSV or TSV file that has no header.

    Raises:
        UserError: there is no such file, its name ends otherwise, or its beginning is none of a table; or it is of a
            format without quotes that are not to be read.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(ENDINGS)}, found {ending or 'no ending'}")
    if not quotes and ending not in _DELIMITERS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(_DELIMITERS)} beside --no_quotes")
    if not path.is_file():
        raise UserError(f"{path}: expected a file, found something else" if path.exists() else f"{path}: no such file")
    try:
        if ending in _DELIMITERS:
            return _open_delimited(path, _DELIMITERS[ending], quotes, header)
        return _open_parquet(path) if ending == ".parquet" else _open_json_lines(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open_delimited(path: Path, delimiter: str, quotes: bool, given_header: Sequence[str] | None) -> Table:
    with path.open("rb") as file:
        first = next(_records(file, path, delimiter, quotes), None)
    if first is None:
        raise UserError(f"{path}: expected a header and rows, found an empty file")
    header = [name.strip() for name in given_header or first]

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        places = [header.index(column) for column in columns]
        with path.open("rb") as file:
            records = _records(file, path, delimiter, quotes)
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
    return Table(str(path), tuple(filter(None, header)), read)


def _records(file: Any, path: Path, delimiter: str, quotes: bool) -> Iterator[list[str]]:
    """The records of an open file, the header first; empty lines are none.

    Raises:
        UserError: a row is not UTF-8 or ends early; names the row.
    """
    csv.field_size_limit(LONGEST)
    number = 0

    def where() -> str:
        return f"{path}, row {number:,}" if number else f"{path}, its header"

    def lines() -> Iterator[str]:
        encoding = "utf-8-sig"
        for line in read_lines(file, path, LONGEST):
            try:
                yield line.decode(encoding)
            except UnicodeDecodeError as error:
                if not number and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise UserError(f"{path}: expected UTF-8, found UTF-16: convert it, such as by iconv") from None
                raise UserError(
                    f"{where()}: expected UTF-8 as in the rest of the file, found the byte "
                    f"0x{error.object[error.start]:02x}: parts of it have another encoding. Convert it, such as by "
                    "iconv"
                ) from None
            encoding = "utf-8"

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


def _open_json_lines(path: Path) -> Table:
    def objects() -> Iterator[dict[str, Cell]]:
        number = 0
        with path.open("rb") as file:
            for line in read_lines(file, path, LONGEST):
                if not line.strip():
                    continue
                number += 1
                try:
                    value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except (ValueError, RecursionError) as error:
                    early = "" if line.endswith(b"\n") else ": the file ends early"
                    raise UserError(
                        f"{path}, row {number:,}: expected an object of JSON, found {json_problem(error)}{early}"
                    ) from None
                if not isinstance(value, dict):
                    raise UserError(f"{path}, row {number:,}: expected an object of JSON, found {value!r:.40}")
                yield value

    first = next(objects(), None)
    if first is None:
        raise UserError(f"{path}: expected an object of JSON in each line, found an empty file")

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for number, value in enumerate(objects(), start=1):
            missing = [column for column in columns if column not in value]
            if not missing:
                yield tuple(value[column] for column in columns)
                continue
            yield UserError(
                f"{path}, row {number:,}: expected {_columns(missing)}, which it has not; it has "
                f"{_columns(list(value))}"
            )

    return Table(str(path), tuple(first), read)


def _open_parquet(path: Path) -> Table:
    # imported here: it takes a second
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    failures = (arrow.ArrowException, OSError, UnicodeDecodeError)

    def refusal(error: Exception) -> UserError:
        reason = str(error).split("\n")[0]
        return UserError(f"{path}: expected a Parquet file, found a damaged one or one that ends early: {reason}")

    try:
        with parquet.ParquetFile(path) as file:
            names = tuple(file.schema_arrow.names)
    except failures as error:
        raise refusal(error) from None

    def read(columns: Sequence[str]) -> Iterator[Row]:
        try:
            with parquet.ParquetFile(path, buffer_size=_PARQUET_BYTES) as file:
                for batch in file.iter_batches(_PARQUET_ROWS, columns=list(dict.fromkeys(columns))):
                    cells = {name: list(map(_plain, column)) for name, column in batch.to_pydict().items()}
                    yield from zip(*(cells[column] for column in columns), strict=True)
        except failures as error:
            raise refusal(error) from None
        except (OverflowError, ValueError) as error:
            # Such as a time that Python has no number for.
            raise UserError(f"{path}: a cell of {_columns(list(columns))} cannot be read: {error}") from None

    return Table(str(path), names, read)


def _plain(cell: Cell) -> Cell:
    """A decimal number as one of Python's own."""
    if not isinstance(cell, Decimal) or not cell.is_finite():
        return cell
    return int(cell) if cell == cell.to_integral_value() else float(cell)


_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*_DELIMITERS, ".jsonl", ".ndjson", ".parquet")
