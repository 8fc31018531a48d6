"""The cells of label columns, and what they spell."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.tabular.cells import Cell, as_number, is_missing, of_another_encoding, whole_number
from nystromformer.wording import number_of

_YES, _NO = ("1", "true", "yes"), ("0", "false", "no", "")
_WRITTEN_LIST = re.compile(r"\[(\s*|.*[\"'].*)\]", re.DOTALL)
"""As Python and JSON write lists of texts, and empty ones."""


@dataclass(frozen=True)
class LabelCells:
    """What stands in the label columns of a table.

    Args:
        name: what messages call the table.
        columns: one, or for several labels at once one for each, of 0 and 1.
        separator: between the labels of a cell, for several at once.
        rows: their numbers in the table, from 1.
        cells: of each row, in the columns.
    """

    name: str
    columns: tuple[str, ...]
    separator: str
    rows: Sequence[int]
    cells: Sequence[Sequence[Cell]]

    def present(self) -> list[Cell]:
        """The labels of a column that every row has one in.

        Raises:
            UserError: some have none; says how many.
        """
        missing = [row for row, (cell,) in zip(self.rows, self.cells, strict=True) if is_missing(cell)]
        if missing:
            raise UserError(
                f"{self.name}: expected a label in each row of {self.columns[0]}, found none in "
                f"{len(missing):,} of {number_of(len(self.cells), 'row')}, the first of them row {missing[0]:,}: fill "
                "them, or add --skip_empty to leave such rows out"
            )
        return [cell for (cell,) in self.cells]

    def values(self) -> list[float]:
        """The numbers of a column.

        Raises:
            UserError: a cell is none.
        """
        cells = self.present()
        values = [value for cell in cells if (value := as_number(cell)) is not None]
        if len(values) < len(cells):
            row, cell = next(each for each in zip(self.rows, cells, strict=True) if as_number(each[1]) is None)
            raise UserError(f"{self.name}, row {row:,}: expected a number (--kind value), found {cell!r:.40}")
        return values

    def spelt(self) -> list[str]:
        """The labels of a column as names. Where all are whole numbers, 3, 3.0 and "3.0" are one, though not "003".

        Raises:
            UserError: a cell is neither number nor text.
        """
        names = [self._spell(row, cell) for row, cell in zip(self.rows, self.present(), strict=True)]
        whole = list(map(whole_number, names))
        return names if None in whole else [name for name in whole if name is not None]

    def sets(self) -> list[list[str]]:
        """The labels that each row has, of several at once.

        Raises:
            UserError: a cell is neither number nor text, nor a list of these.
        """
        return [self._set(row, each) for row, each in zip(self.rows, self.cells, strict=True)]

    def _set(self, row: int, cells: Sequence[Cell]) -> list[str]:
        if len(self.columns) > 1:
            return [name for name, cell in zip(self.columns, cells, strict=True) if self._is_yes(row, name, cell)]
        (cell,) = cells
        if is_missing(cell):
            return []
        if isinstance(cell, str) and _WRITTEN_LIST.fullmatch(cell.strip()):
            raise UserError(
                f"{self.name}, row {row:,}: expected labels with {self.separator!r} between them, found a list written "
                f"as text, {cell.strip()!r:.40}; JSON Lines and Parquet have lists"
            )
        parts = (
            cell.split(self.separator) if isinstance(cell, str) else cell if isinstance(cell, list | tuple) else [cell]
        )
        return list(dict.fromkeys(filter(None, (self._spell(row, part) for part in parts))))

    def _is_yes(self, row: int, column: str, cell: Cell) -> bool:
        text = "" if is_missing(cell) else self._spell(row, cell).lower()
        text = whole_number(text) or text
        if text not in _YES + _NO:
            raise UserError(f"{self.name}, row {row:,}: expected 0 or 1 in {column}, found {cell!r:.40}")
        return text in _YES

    def _spell(self, row: int, cell: Cell) -> str:
        if isinstance(cell, bool):
            return str(cell).lower()
        if isinstance(cell, str):
            if half_character(cell) is not None:
                raise UserError(f"{self.name}, row {row:,}: {of_another_encoding()}")
            return " ".join(cell.split())  # it becomes a column's name in the predictions: one line
        if isinstance(cell, int):
            return str(cell)
        if isinstance(cell, float) and math.isfinite(cell):
            return str(int(cell)) if cell.is_integer() and abs(cell) < 2**53 else repr(cell)
        raise self._refusal(row, cell)

    def _refusal(self, row: int, cell: Cell) -> UserError:
        kinds = {"list": "a list (for several labels at once: --kind several)", "dict": "an object"}
        kind = kinds.get(type(cell).__name__, repr(cell)[:40])
        return UserError(f"{self.name}, row {row:,}: expected a label that is a number or text, found {kind}")
