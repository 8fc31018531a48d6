"""Tables that people bring, of any size: which columns they have, and their rows.

    table = open_table("reviews.csv")
    for body, stars in table.rows(["body", "stars"]): ...   # cells, a row at a time
    events = open_table("events.parquet").arrow()           # all of it as pyarrow's table, of CSV and Parquet

CSV and TSV files give text alone. Read by rows, whatever the format, a row with too many or too few cells, a file that
ends early, a header that comes again and rows that a quotation mark joins are said with the numbers of their rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from nystromformer.errors import UserError
from nystromformer.tabular.cells import Cell
from nystromformer.tabular.reading import Reading
from nystromformer.wording import first_names

T = TypeVar("T")
Row = tuple[Cell, ...]
_SHEET = re.compile(r"(?P<file>.+\.xlsx):(?P<sheet>.+)", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """A table that can be read any number of times.

    Args:
        name: what messages call it.
        columns: in their order; none without a name.
        read: gives the cells of the named columns, row by row; for a row that is none what is wrong with it.
        read_arrow: gives all of it as a table of pyarrow's; None of other formats than CSV, TSV and Parquet.
    """

    name: str
    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row | UserError]]
    read_arrow: Callable[[], Any] | None = None
    reading: Reading = Reading()  # noqa: RUF009  # immutable

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
        return _decoded(self, self.read(columns))

    def arrow(self) -> Any:
        """All of it as a table of pyarrow's; of a CSV or TSV file all columns are text, and an empty cell is null."""
        if self.read_arrow is None:
            raise UserError(f"{self.name}: expected a .csv, .tsv or .parquet file")
        return self.read_arrow()

    def place(self, row: int) -> str:
        """What messages call a row; they count from 1, without the header."""
        return f"{self.name}, row {row:,}"


@contextmanager
def _decoding(name: object, reading: Reading) -> Iterator[None]:
    """Say of a byte that the encoding has not what to do."""
    try:
        yield
    except UnicodeError as error:
        raise UserError(
            f"{name}: expected text in {reading.encoding}, found another encoding ({error}): convert it, or name its "
            "--encoding, such as cp1252"
        ) from None


def _decoded(table: Table, read: Iterator[T]) -> Iterator[T]:
    with _decoding(table.name, table.reading):
        yield from read


def _row_or_raise(row: Row | UserError) -> Row:
    if isinstance(row, UserError):
        raise row
    return row


def columns_named(flag: str, text: str, table: Table, most: int | None = None) -> tuple[str, ...]:
    """The columns that a flag names: one, or several separated by commas.

    Args:
        most: how many may be named; None: any number.

    Raises:
        UserError: one is not there (lists those that are), or there are too many.
    """
    # One column's name may have a comma.
    names = (text,) if text in table.columns else tuple(part.strip() for part in text.split(","))
    missing = [name for name in names if name not in table.columns]
    if missing or len(set(names)) < len(names):
        twice = "each once" if not missing else f"found no {first_names(missing)}"
        raise UserError(
            f"{flag} {text}: expected columns of {table.name}, {twice}; it has the columns {first_names(table.columns)}"
        )
    if most is not None and len(names) > most:
        raise UserError(f"{flag} {text}: expected one column{' or two' * (most > 1)}, found {len(names)}")
    return names


def open_table(
    place: str | Path,
    reading: Reading = Reading(),  # noqa: B008  # immutable
    header: Sequence[str] | None = None,
    default: Path = Path(),
) -> Table:
    """A table in a file, in a sheet of an Excel file (`FILE.xlsx:SHEET`), or in a folder with a folder of .txt files
    for each class.

    Args:
        reading: what the file does not say.
        header: the columns of a CSV or TSV file that has no header.
        default: where relative names are that are not in the current folder.

    Raises:
        UserError: there is no such file, its name has another ending, or it does not begin as a table.
    """
    from nystromformer.tabular.delimited import open_delimited
    from nystromformer.tabular.formats import open_excel, open_folder, open_json, open_parquet

    path, sheet = Path(place), None
    if (found := _SHEET.fullmatch(str(place))) is not None and not path.exists():
        path, sheet = Path(found["file"]), found["sheet"]
    if not path.exists() and (default / path).exists():
        path = default / path
    if path.is_dir():
        return open_folder(path, reading)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise UserError(f"{path}: expected text, found a file compressed by gzip: decompress it (gunzip)")
    with _decoding(path, reading):
        match path.suffix.lower():
            case ".csv" | ".tsv":
                return open_delimited(path, reading, header)
            case ".jsonl" | ".ndjson" | ".json":
                return open_json(path, reading)
            case ".parquet":
                return open_parquet(path, reading)
            case ".xlsx":
                return open_excel(path, reading, sheet)
    raise UserError(
        f"{path}: expected a file that ends in .csv, .tsv, .jsonl, .ndjson, .json, .parquet or .xlsx, found "
        f"{path.suffix or 'no ending'}"
    )
