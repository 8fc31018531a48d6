"""Tables that people bring, of any size: which columns they have, and their rows.

    table = open_place("reviews.csv", Path())
    for body, stars in table.rows(["body", "stars"]): ...              # cells, a row at a time
    for batch in open_table(path).batches(["client", "amount"]): ...   # pyarrow's record batches, of CSV and Parquet

CSV and TSV files give text alone; `batches` gives them the types of pyarrow that it is asked for. Whatever the format,
a row with too many or too few cells, a file that ends early, a header that comes again and rows that a quotation mark
joins are said with the numbers of their rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell
from nystromformer.tabular.reading import Reading
from nystromformer.wording import first_names

Row = tuple[Cell, ...]
Kinds = Mapping[str, Any]
_MOST_COLUMNS = 5000
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".xlsx")
_SHEET = re.compile(r"(?P<file>.+\.xlsx):(?P<sheet>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """A table that can be read any number of times.

    Args:
        name: what messages call it.
        columns: in their order; none without a name.
        read: gives the cells of the named columns, row by row; for a row that is none what is wrong with it.
        read_batches: gives record batches of the named columns; None of formats that have no types.
        decimal_comma: whether 3,5 is a number, as where semicolons stand between cells.

    Raises:
        UserError: it has more columns than a table of texts has.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row | UserError]]
    read_batches: Callable[[Sequence[str], Kinds | None], Iterator[Any]] | None = None
    reading: Reading = Reading()  # noqa: RUF009  # immutable
    decimal_comma: bool = False

    def __post_init__(self) -> None:
        if len(self.columns) > _MOST_COLUMNS:
            raise UserError(
                f"{self.name}: expected at most {_MOST_COLUMNS:,} columns, found {len(self.columns):,} "
                f"({first_names(self.columns)}): is all of it one line, or are its rows columns?"
            )

    def rows(self, columns: Sequence[str]) -> Iterator[Row]:
        """The cells of these columns, row by row.

        Raises:
            UserError: a column is not there (lists those that are), or a row is none; names the row.
        """
        return map(_row_or_raise, self.rows_or_errors(columns))

    def rows_or_errors(self, columns: Sequence[str]) -> Iterator[Row | UserError]:
        """The same, but for a row that has not the columns' cells an error that says so: the rows after it follow."""
        self._check(columns)
        return self.read(columns)

    def batches(self, columns: Sequence[str], kinds: Kinds | None = None) -> Iterator[Any]:
        """These columns in record batches of pyarrow; of a CSV or TSV file an empty cell is null.

        Args:
            kinds: pyarrow's types of columns of a CSV or TSV file; the others are of the type that each batch looks
                like. None: all are text. Columns of Parquet have their own.

        Raises:
            UserError: as `rows`; or the table is in another format, or a cell is not of its column's type.
        """
        self._check(columns)
        if self.read_batches is None:
            raise UserError(f"{self.name}: expected a .csv, .tsv or .parquet file")
        return self.read_batches(columns, kinds)

    def _check(self, columns: Sequence[str]) -> None:
        for column in columns:
            if self.columns.count(column) != 1:
                raise UserError(
                    f"{self.name}: expected one column {column}, found {self.columns.count(column)}; it has the "
                    f"columns {first_names(self.columns)}"
                )

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


def open_place(place: str, default: Path, reading: Reading = Reading()) -> Table:  # noqa: B008  # immutable
    """The table that a flag names: a file, or a sheet of an Excel file as `FILE.xlsx:SHEET`.

    Args:
        default: where relative names are that are not in the current folder.
        reading: as `open_table` takes it.

    Raises:
        UserError: it is not there, or no table.
    """
    found, sheet = _SHEET.fullmatch(place), None
    if found is not None and not Path(place).exists():
        place, sheet = found["file"], found["sheet"]
    path = Path(place)
    return open_table(default / path if not path.exists() and (default / path).exists() else path, reading, None, sheet)


def open_table(
    path: Path,
    reading: Reading = Reading(),  # noqa: B008  # immutable
    header: Sequence[str] | None = None,
    sheet: str | None = None,
) -> Table:
    """A table in a file whose name ends in one of ENDINGS, or in a folder with a folder of .txt files for each class.

    Args:
        reading: what the file does not say.
        header: the columns of a CSV or TSV file that has no header.
        sheet: of an Excel file that has several.

    Raises:
        UserError: there is no such file, its name ends otherwise, or it does not begin as a table.
    """
    from nystromformer.tabular import delimited, formats

    ending = path.suffix.lower()
    if path.is_dir():
        return formats.open_folder(path, reading)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    if ending not in ENDINGS:
        raise UserError(f"{path}: expected a file that ends in {', '.join(ENDINGS)}, found {ending or 'no ending'}")
    formats.check_content(path, reading)
    if ending in delimited.DELIMITERS:
        return delimited.open_delimited(path, reading, header)
    if ending == ".parquet":
        return formats.open_parquet(path, reading)
    if ending == ".xlsx":
        return formats.open_excel(path, reading, sheet)
    return formats.open_json(path, reading)
