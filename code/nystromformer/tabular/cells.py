"""What stands in a cell: text, a number, or nothing."""

from __future__ import annotations

import math
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.wording import number_of

if TYPE_CHECKING:
    from nystromformer.tabular.table import Table

Cell = Any
"""Text of CSV and TSV; of other formats text, a number, a truth value, a date, a list of these, or None."""
MISSING = {
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?"),
}
"""pandas' own words for a missing value, and that of UCI's tables."""
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff"
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0+)?", re.ASCII)


def is_missing(cell: Cell, keep_na: bool = True) -> bool:
    """Whether a cell has nothing in it or, unless such words are kept, a word that says so."""
    if isinstance(cell, str):
        text = cell.strip().strip(_INVISIBLE)
        return not text or (not keep_na and text in MISSING)
    return cell is None or (isinstance(cell, float) and cell != cell)


def whole_number(name: str) -> str | None:
    """How a name that is a whole number, as numbers are written, is spelt: 3 for 3.0; None of another, such as 003."""
    found = _WHOLE.fullmatch(name)
    return None if found is None else "0" if found[1] == "-0" else found[1]


def as_number(cell: Cell) -> float | None:
    """The number that a cell is or spells; None of anything else."""
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    # Python alone reads 1_000 as a number.
    return value if math.isfinite(value) and "_" not in str(cell) else None


def plain(cell: Cell) -> Cell:
    """A decimal number as one of Python's own."""
    if not isinstance(cell, Decimal) or not cell.is_finite():
        return cell
    return int(cell) if cell == cell.to_integral_value() else float(cell)


def of_another_encoding(encoding: str = "utf-8") -> str:
    """What to say of text with a byte that its encoding has not."""
    return f"expected text in {encoding}, found another encoding: convert it, or name its --encoding, such as cp1252"


def text_of(table: Table, row: int, column: str, cell: Cell) -> str:
    """A cell as text; nothing is an empty one.

    Raises:
        UserError: it is none.
    """
    if is_missing(cell) and not isinstance(cell, str):
        return ""
    if table.reading.as_text and isinstance(cell, bool | int | float | date):
        return str(cell)
    if not isinstance(cell, str):
        way_out = "; --as_text reads numbers and dates as text" if isinstance(cell, int | float | date) else ""
        raise UserError(f"{table.place(row)}: expected text in {column}, found {cell!r:.40}{way_out}")
    if half_character(cell) is not None:
        raise UserError(f"{table.place(row)}, {column}: {of_another_encoding(table.reading.encoding)}")
    return cell


def id_of(table: Table, row: int, column: str, cell: Cell) -> str:
    """A row's id as text, which may be a number in the table; nothing is an empty one.

    Raises:
        UserError: it is no text.
    """
    return text_of(table, row, column, cell if isinstance(cell, str) or is_missing(cell) else str(cell))


def empty_texts(table: Table, empty: int, count: int, first: int) -> str:
    """What is said of texts that have nothing in them."""
    are = "is" if empty == 1 else "are"
    return (
        f"{table.name}: {empty:,} of {number_of(count, 'text')} {are} empty, the first of them in row {first:,}: fill "
        "them in, or add --skip_empty"
    )
