"""The table of fine-tuning runs for a terminal of any width."""

import textwrap
from collections.abc import Sequence

from nystromformer.report.table2 import Table

_BETWEEN = "  "
_INDENT = "  "


def fitted(table: Table, width: int) -> str:
    """The table in one piece where its lines have at most so many characters, else a piece for each task.

    Args:
        width: characters of the longest line; at least 20, of which a long word takes several lines.
    """
    width = max(width, 20)
    rows = [["", *table.tasks], *([label, *cells] for label, cells in table.rows)]
    lines = _columns(rows)
    if max(map(len, lines)) > width:
        pieces = ([[task, ""], *_of_task(table, number)] for number, task in enumerate(table.tasks))
        lines = [line for piece in pieces for line in (*_stacked(piece, width), "")]
    below = (line for text in table.below for line in ("", *textwrap.wrap(text, width)))
    return "\n".join([*lines, *below]).replace("\n\n\n", "\n\n")


def _of_task(table: Table, number: int) -> list[list[str]]:
    return [[_INDENT + label, cells[number]] for label, cells in table.rows if cells[number]]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_BETWEEN.join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _stacked(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A task's figures beside their names; where that is too wide, below them."""
    lines = _columns(rows)
    if max(map(len, lines)) <= width:
        return lines
    found: list[str] = []
    for label, cell in rows:
        depth = _INDENT if label.startswith(_INDENT) else ""
        for text, indent in ((label.strip(), depth), (cell, depth + _INDENT)):
            found += textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + _INDENT)
    return found
