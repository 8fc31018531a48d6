"""Tables as text: Markdown, and columns for a terminal."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_JOINERS = "\u200c\u200d"
"""Without a width, but parts of words in some scripts, and of emoji."""


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
