"""Tables as text: what is in a column stands in it, in Markdown and in a terminal of any width."""

import io
import sys

import pytest

from nystromformer.tables import LEAST_WIDTH, Column, aligned, fitted, longest, markdown, terminal_width

COLUMNS = [Column(is_text=True), Column("tokens a second", 3), Column("how", 12, is_text=True, gap=1)]
ROWS = [["a name of some length", "12,345", "by hand"], ["b", "", ""], ["c", "7", "in a way that is long"]]


def test_columns_stand_below_each_other_and_are_as_wide_as_they_must_be() -> None:
    lines = aligned(COLUMNS, ROWS)
    assert lines == [
        "                       tokens a second how",
        "a name of some length           12,345 by hand",
        "b",
        "c                                    7 in a way that is long",
    ]
    assert aligned([Column("x", 5), Column("y", 5, is_text=True)], [["1", "2"]]) == ["    x  y", "    1  2"]


def test_a_row_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="zip"):
        aligned(COLUMNS, [["a", "b"]])


@pytest.mark.parametrize("heading", ["", "the name"])
@pytest.mark.parametrize("width", [1, LEAST_WIDTH, 25, 30, 45, 59, 60, 200])
def test_no_line_is_longer_than_asked_for_and_nothing_is_lost(width: int, heading: str) -> None:
    columns = [Column(heading, is_text=True), *COLUMNS[1:]]
    lines = fitted(columns, ROWS, width)
    assert longest(lines) <= max(width, LEAST_WIDTH)
    squeezed = "".join("".join(lines).split())
    for text in (heading, *(column.heading for column in columns), *(cell for row in ROWS for cell in row if row[1])):
        assert text.replace(" ", "") in squeezed
    assert (lines == aligned(columns, ROWS)) == (width >= 60)


def test_a_piece_leaves_out_what_it_has_nothing_of() -> None:
    assert fitted([Column("name", is_text=True), *COLUMNS[1:]], ROWS, 50) == [
        "tokens a second",
        "  name",
        "  a name of some length  12,345",
        "  c                      7",
        "",
        "how",
        "  name",
        "  a name of some length  by hand",
        "  c                      in a way that is long",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert terminal_width() == 33
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert terminal_width() is None
    assert fitted(COLUMNS, ROWS, None) == aligned(COLUMNS, ROWS)


def test_markdown_keeps_its_columns_whatever_is_in_a_cell() -> None:
    assert markdown(["a", ""], [["1 | 2", "ö"]]).splitlines() == ["| a |  |", "|---|---|", "| 1 \\| 2 | ö |"]
