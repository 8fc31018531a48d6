"""CSV and TSV files, by the standard library, row by row."""

from __future__ import annotations

import csv
import importlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError, first_line
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import Row, Table
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

_OTHERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
"""What may stand between the cells of a .csv file instead of commas."""
_SEPARATOR = re.compile(r"sep=(.)\s*")
"""The first line that Excel writes, and that its users write for it."""
_LONGEST = 1 << 23
"""Characters of a cell."""
_END = "\0end of the table\0"
csv.field_size_limit(_LONGEST)


def open_delimited(path: Path, reading: Reading, given_header: Sequence[str] | None) -> Table:
    """The table in a CSV or TSV file."""
    delimiter, skipped = "," if path.suffix.lower() == ".csv" else "\t", 0
    with reading.open(path, newline="") as file:
        top = file.readline(_LONGEST)
        if found := _SEPARATOR.fullmatch(top):
            delimiter, skipped = found[1], 1
        else:
            file.seek(0)
            others = [each for each in _OTHERS if each in top]
            if delimiter == "," and "," not in top and len(others) == 1:
                delimiter = others[0]
                logger.info("%s: its cells are separated by %s", path, _OTHERS[delimiter])
        lines = csv.reader(file, delimiter=delimiter, quoting=reading.quoting)
        try:
            first = next(filter(None, lines), None)
        except csv.Error as error:
            raise UserError(f"{path}: expected a header in its first line, found none: {error}") from None
    if first is None:
        raise UserError(f"{path}: expected a header and rows, found an empty file")
    if given_header is None:
        skipped += lines.line_num
    header = tuple(name.strip() for name in given_header or first)
    content = _File(path, reading, header, delimiter, skipped)
    # Tables that pandas wrote begin with a column of row numbers without a name.
    names = tuple(filter(None, header))
    return Table(str(path), names, content.rows, content.arrow, reading)


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
        """As of `Table.rows_or_errors`. Empty lines are no rows."""
        places = [self.header.index(column) for column in columns]
        number = line = 0
        with self.reading.open(self.path, newline="") as file:
            # The last line is a row of its own, unless quotes are open at the file's end.
            content = chain(islice(file, self.skipped, None), [_END])
            lines = csv.reader(content, delimiter=self.delimiter, quoting=self.reading.quoting)
            try:
                for row in filter(None, lines):
                    if row == [_END]:
                        return
                    number += 1
                    line, before = lines.line_num, line
                    what = ""
                    if row[-1].endswith(_END):
                        what = "it ends within quotes: the file ends early, or a quotation mark is text (--no_quotes)"
                    elif len(row) != len(self.header):
                        what = (
                            f"expected {number_of(len(self.header), 'cell')}, found {len(row)}: the file ends early, "
                            "or a cell that is not quoted holds a delimiter"
                        )
                    elif self._is_header(row):
                        others = enumerate(filter(None, lines), number + 1)
                        again = [number, *(n for n, cells in others if self._is_header(cells))]
                        raise UserError(
                            f"{self.path}: expected one header, found it again in the rows {first_names(again)}, as in "
                            "joined files: remove these"
                        )
                    elif line > before + 1 and self.reading.quotes is None and (name := self._joined(row)):
                        what = (
                            f"{name} has both a delimiter and a line end: if quotation marks are text, they join "
                            "rows: add --no_quotes; if the cell is meant so, add --quotes"
                        )
                    place = f"{self.path}, row {number:,}"
                    yield UserError(f"{place}: {what}") if what else tuple(row[at] for at in places)
            except csv.Error as error:
                raise UserError(
                    f"{self.path}, row {number + 1:,}: {error}: a quotation mark may open a cell that nothing closes "
                    "(--no_quotes reads it as text)"
                ) from None

    def _is_header(self, row: Sequence[str]) -> bool:
        if len(row) < 2 or row[0].strip().lower() != self.header[0].lower():
            return False
        return [cell.strip().lower() for cell in row] == [name.lower() for name in self.header]

    def _joined(self, row: Sequence[str]) -> str:
        """The column of a cell that may be several rows; empty where there is none."""
        cells = zip(self.header, row, strict=True)
        return next((name for name, cell in cells if self.delimiter in cell and re.search("[\r\n]", cell)), "")

    def arrow(self) -> Any:
        """As of `Table.arrow`."""
        arrow, arrow_csv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
        texts = dict.fromkeys(self.header, arrow.string())
        try:
            return arrow_csv.read_csv(
                self.path,
                arrow_csv.ReadOptions(column_names=self.header, skip_rows=self.skipped, use_threads=False),
                arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                arrow_csv.ConvertOptions(column_types=texts, null_values=[""], strings_can_be_null=True),
            )
        except arrow.ArrowInvalid as error:
            raise UserError(f"{self.path}: {first_line(error)}") from None
