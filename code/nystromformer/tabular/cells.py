"""What stands in a cell: text, a number, or nothing."""

from __future__ import annotations

import math
import re
from datetime import date
from typing import TYPE_CHECKING, Any

from nystromformer.errors import UserError
from nystromformer.files.reading import half_character

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


def text_of(table: Table, row: int, column: str, cell: Cell, as_text: bool = False) -> str:
    """A cell as text; nothing is an empty one.

    Args:
        as_text: numbers, dates and truth values are text, too.
    """
    if isinstance(cell, bool | int | float | date) and not is_missing(cell):
        if not (as_text or table.reading.as_text):
            raise UserError(
                f"{table.place(row)}: expected text in {column}, found {cell!r:.40}; --as_text reads numbers and dates "
                "as text"
            )
        return str(cell)
    if is_missing(cell) and not isinstance(cell, str):
        return ""
    if not isinstance(cell, str):
        raise UserError(f"{table.place(row)}: expected text in {column}, found {cell!r:.40}")
    if half_character(cell) is not None:
        raise UserError(f"{table.place(row)}: expected text in {column}, found half of a surrogate pair")
    return cell
