"""CSV and TSV files, by pyarrow, in blocks."""

from __future__ import annotations

import csv
import importlib
import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from nystromformer.errors import UserError, first_line
from nystromformer.files.reading import half_character
from nystromformer.tabular.cells import of_another_encoding
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import Kinds, Row, Table
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

DELIMITERS = {".csv": ",", ".tsv": "\t"}
_OTHERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What may stand between the cells of a .csv file instead."""
_SEPARATOR = re.compile(r"sep=(.)\s*")
"""The first line that Excel writes, and that its users write for it."""
_BLOCK_BYTES = 1 << 23
"""Read at a time; a row is no longer."""
_ROWS = 4096
"""Made Python's at a time."""
_END = "\0end of the table\0"


def open_delimited(path: Path, reading: Reading, given_header: Sequence[str] | None) -> Table:
    """The table in a CSV or TSV file.

    Raises:
        UserError: it has no header.
    """
    file = _begin(path, reading, given_header)
    # Tables that pandas wrote begin with a column of row numbers without a name.
    names = tuple(filter(None, file.header))
    return Table(str(path), names, file.rows, file.batches, reading, decimal_comma=file.delimiter == ";")


def _begin(path: Path, reading: Reading, given_header: Sequence[str] | None) -> _File:
    delimiter, skipped = DELIMITERS[path.suffix.lower()], 0
    with reading.open(path, newline="") as file:
        top = file.readline(_BLOCK_BYTES)
        if found := _SEPARATOR.fullmatch(top):
            delimiter, skipped = found[1], 1
        else:
            file.seek(0)
            others = [each for each in _OTHERS if each in top]
            if delimiter == "," and "," not in top and len(others) == 1:
                delimiter = others[0]
                logger.info("%s: its cells are separated by %s", path, _OTHERS[delimiter])
        lines = csv.reader(
            file, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if reading.is_quoted else csv.QUOTE_NONE
        )
        try:
            first = next(filter(None, lines), None)
        except csv.Error as error:
            raise UserError(f"{path}: expected a header in its first line, found none: {error}") from None
    if first is None:
        raise UserError(f"{path}: expected a header and rows, found an empty file")
    if half_character("".join(first)) is not None:
        raise UserError(f"{path}: {of_another_encoding(reading.encoding)}")
    if given_header is not None:
        return _File(path, reading, tuple(given_header), delimiter, skipped)
    return _File(path, reading, tuple(name.strip() for name in first), delimiter, skipped + lines.line_num)


@dataclass(frozen=True)
class _File:
    """How a file is written.

    Args:
        skipped: lines before the first row.
    """

    path: Path
    reading: Reading
    header: tuple[str, ...]
    delimiter: str
    skipped: int

    def rows(self, columns: Sequence[str]) -> Iterator[Row | UserError]:
        """As of `Table.rows_or_errors`."""
        places = [self.header.index(column) for column in columns]
        bad: dict[int, UserError] = {}
        numbers = itertools.count(1)
        for batch in self._blocks(None, bad):
            for start in range(0, batch.num_rows, _ROWS):
                part = batch.slice(start, _ROWS)
                cells = {place: _texts(part.column(place)) for place in places}
                for row in zip(*(cells[place] for place in places), strict=True) if places else ():
                    while (error := bad.pop(next(numbers), None)) is not None:
                        yield error
                    yield row
        while bad and (error := bad.pop(next(numbers), None)) is not None:
            yield error

    def batches(self, columns: Sequence[str], kinds: Kinds | None) -> Iterator[Any]:
        """As of `Table.batches`."""
        arrow = importlib.import_module("pyarrow")
        places = [self.header.index(column) for column in columns]
        if kinds is None:
            kinds = dict.fromkeys(columns, arrow.string())
        types = {
            str(place): kinds.get(name) if name in columns else arrow.binary() for place, name in enumerate(self.header)
        }
        bad: dict[int, UserError] = {}
        for batch in self._blocks({name: kind for name, kind in types.items() if kind is not None}, bad):
            if bad:
                raise bad[min(bad)]
            if batch.num_rows:
                yield arrow.RecordBatch.from_arrays([batch.column(place) for place in places], names=list(columns))

    def _blocks(self, types: Kinds | None, bad: dict[int, UserError]) -> Iterator[Any]:
        """All columns, called by their numbers, in record batches.

        Args:
            types: of pyarrow's; None: bytes, of which an empty cell has none.
            bad: gets what is wrong with rows that are left out, by their numbers.

        Raises:
            UserError: the file ends within quotes, or rows are what they cannot be.
        """
        arrow, arrow_csv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
        names = [str(place) for place in range(len(self.header))]
        left_out: list[int] = []
        has_end, torn = False, 0

        def leave_out(row: Any) -> str:
            nonlocal has_end, torn
            number = row.number - self.skipped
            if row.text.startswith(_END):
                has_end = True
            elif _END in row.text:
                torn = number
            else:
                left_out.append(number)
                bad[number] = UserError(
                    f"{self.path}, row {number:,}: expected {number_of(row.expected_columns, 'cell')}, found "
                    f"{row.actual_columns}: the file ends early, or a cell holds a delimiter"
                    f"{' and is not quoted' if self.reading.is_quoted else ''}"
                )
            return "skip"

        with self.reading.open(self.path, newline="") as file:
            # Of a cell too many: it becomes no row, unless quotes are open at the file's end.
            stream = arrow.PythonFile(_WithEnd(file, _END + self.delimiter * len(names)), mode="r")
            rows = 0
            try:
                for block in arrow_csv.open_csv(
                    stream,
                    arrow_csv.ReadOptions(
                        use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows=self.skipped
                    ),
                    arrow_csv.ParseOptions(
                        delimiter=self.delimiter,
                        quote_char=self.reading.is_quoted and '"',
                        newlines_in_values=self.reading.is_quoted,
                        invalid_row_handler=leave_out,
                    ),
                    arrow_csv.ConvertOptions(
                        column_types=dict.fromkeys(names, arrow.binary()) if types is None else types,
                        null_values=[""],
                        strings_can_be_null=types is not None,
                    ),
                ):
                    self._check(block, rows, left_out)
                    yield block
                    rows += block.num_rows
            except UnicodeError as error:
                raise UserError(f"{self.path}: {of_another_encoding(self.reading.encoding)} ({error})") from None
            except arrow.ArrowException as error:
                if "straddl" not in str(error):
                    raise UserError(f"{self.path}: expected a table: {first_line(error)}") from None
                raise UserError(
                    f"{self.path}: expected rows of at most {_BLOCK_BYTES >> 20} MiB, found a longer one: a quotation "
                    "mark may open a cell that nothing closes (--no_quotes reads it as text)"
                ) from None
        if not has_end:
            place = f"{self.path}, row {torn or _number(rows - 1, left_out):,}"
            raise UserError(
                f"{place}: it ends within quotes: the file ends early, or a quotation mark is text (--no_quotes)"
            )

    def _check(self, block: Any, before: int, left_out: Sequence[int]) -> None:
        """Check that no row is the header once more, and that none is several that a quotation mark joins.

        Args:
            before: rows of the blocks before.
            left_out: as of `_number`.

        Raises:
            UserError: names the rows.
        """
        compute, types = (importlib.import_module(f"pyarrow.{name}") for name in ("compute", "types"))
        texts = [
            (name, column)
            for name, column in zip(self.header, block.columns, strict=True)
            if types.is_binary(column.type) or types.is_string(column.type)
        ]
        if len(texts) > 1 and (first := self.header[0]):
            looks_alike = compute.match_substring(texts[0][1], first, ignore_case=True)
            rows = [
                row
                for row in compute.indices_nonzero(looks_alike.fill_null(False)).to_pylist()
                if all(_text(column[row]).strip().lower() == name.lower() for name, column in texts)
            ]
            if rows:
                numbers = [f"{_number(before + row, left_out):,}" for row in rows]
                raise UserError(
                    f"{self.path}: expected one header, found it again in {number_of(len(rows), 'row')} "
                    f"({first_names(numbers)}), as in joined files: remove these rows"
                )
        for name, column in texts if self.reading.quotes is None else ():
            has_line_end = compute.match_substring_regex(column, "[\r\n]")
            both = compute.and_(has_line_end, compute.match_substring(column, self.delimiter)).fill_null(False)
            for row in compute.indices_nonzero(both).to_pylist():
                if _END not in _text(column[row]):
                    place = f"{self.path}, row {_number(before + row, left_out):,}"
                    raise UserError(
                        f"{place}: {name} has both a delimiter and a line end: if quotation marks are text, they join "
                        "rows: add --no_quotes; if the cell is meant so, add --quotes"
                    )


def _number(row: int, left_out: Sequence[int]) -> int:
    """Of the row in the file, from 1.

    Args:
        row: its place among those that are not left out, from 0.
        left_out: numbers of the others.
    """
    number = row + 1
    for other in left_out:
        number += other <= number
    return number


def _text(cell: Any) -> str:
    value = cell.as_py()
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""


def _texts(column: Any) -> list[str]:
    """Cells as text; of bytes that are none, halves of characters."""
    arrow = importlib.import_module("pyarrow")
    try:
        texts: list[str] = column.cast(arrow.string()).to_pylist()
    except arrow.ArrowInvalid:
        texts = [cell.decode("utf-8", "surrogateescape") for cell in column.to_pylist()]
    return texts


class _WithEnd:
    """A text file as bytes, and a line behind its last one."""

    closed = False

    def __init__(self, file: TextIO, end: str) -> None:
        self._file, self._end = file, f"\n{end}\n"

    def read(self, size: int) -> bytes:
        text = self._file.read(size)
        if len(text) < size:
            text, self._end = text + self._end, ""
        return text.encode("utf-8", "surrogateescape")

    def close(self) -> None:
        self.closed = True
