"""Tables as text: Markdown, and columns for a terminal of any width."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_INDENT = "  "
_JOINERS = "\u200c\u200d"
"""Without a width, but parts of words in some scripts, and of emoji."""
LEAST_WIDTH = 20
"""Characters of a line that a table needs; long words take several lines of them."""


@dataclass(frozen=True)
class Column:
    """A column of a terminal's table."""

    heading: str = ""
    width: int = 0
    """Places that it has at least; it is as wide as its widest cell."""
    is_text: bool = False
    """Whether cells begin at its left end; figures end at its right one."""
    gap: int = 2
    """Blanks before it."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown, whatever stands in its cells."""
    first, *others = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (header, *rows))
    return "\n".join([first, "|---" * len(header) + "|", *others])


def show(text: str) -> None:
    """Print Markdown: on a terminal with its tables drawn within the terminal's width, elsewhere as it is."""
    if not sys.stdout.isatty():
        sys.stdout.write(f"{text}\n")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def aligned(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines, the headings first, in which what belongs to a column stands below each other."""
    cells = [[column.heading for column in columns], *rows]
    widths = [
        max(column.width, *map(display_width, each))
        for column, each in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return [_line(columns, widths, row) for row in cells]


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """The same in one piece where its lines have at most so many characters, else a piece for each column but the
    first, which names the rows; a piece leaves out the rows that have nothing in it.

    Args:
        width: characters of the longest line; at least `LEAST_WIDTH`. None: in one piece, however wide.
    """
    lines = aligned(columns, rows)
    if width is None or longest(lines) <= max(width, LEAST_WIDTH):
        return lines
    width = max(width, LEAST_WIDTH)
    first, *others = columns
    names = [[_INDENT + first.heading, ""]] if first.heading else []
    pieces = (
        [[column.heading, ""], *names, *([_INDENT + row[0], row[number]] for row in rows if row[number])]
        for number, column in enumerate(others, start=1)
    )
    return apart(_stacked(piece, width) for piece in pieces)


def terminal_width() -> int | None:
    """Characters of a line where output goes to a terminal; None in a pipe or a log, where tables stay in one piece."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def apart(pieces: Iterable[Sequence[str]]) -> list[str]:
    """The lines of all pieces, with an empty one between two."""
    return [line for piece in pieces for line in ("", *piece)][1:]


def longest(lines: Iterable[str]) -> int:
    """Places of the longest line."""
    return max(map(display_width, lines))


def display_width(text: str) -> int:
    """Places that a text takes on a terminal: two for a wide character, such as 語, none for one that combines with the
    one before."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # not there where the attention alone is installed

    return cell_len(text)


def printable(text: str) -> str:
    """A text on one line that leaves the terminal as it is: control characters, and those that turn the direction of
    writing, are as Python writes them."""
    return "".join(c if c.isprintable() or c in _JOINERS else c.encode("unicode_escape").decode() for c in text)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    parts: list[str] = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        parts.append(" " * column.gap if parts else "")
        blanks = " " * (width - display_width(cell))
        parts.append(cell + blanks if column.is_text else blanks + cell)
    return "".join(parts).rstrip()


def _stacked(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Cells beside the names of their rows; where that is too wide, below them."""
    texts = [Column(is_text=True)] * 2
    lines = aligned(texts, rows)[1:]
    if longest(lines) <= width:
        return lines
    wrapped: list[str] = []
    for name, cell in rows:
        depth = _INDENT if name.startswith(_INDENT) else ""
        for text, indent in ((name.strip(), depth), (cell, depth + _INDENT)):
            wrapped += textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + _INDENT)
    return wrapped
