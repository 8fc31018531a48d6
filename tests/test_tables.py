"""Tables as text: what is in a column stands in it, in Markdown and in a terminal of any width."""

import io
import sys

import pytest

from nystromformer.tables import (
    LEAST_WIDTH,
    Column,
    aligned,
    display_width,
    fitted,
    longest,
    markdown,
    printable,
    terminal_width,
)

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


def test_wide_characters_keep_columns_below_each_other() -> None:
    names = ["実験", "e\u0301t\u0301", "🙂", "plain"]
    lines = aligned([Column("name", is_text=True), Column("n"), Column(is_text=True)], [[n, "1", "|"] for n in names])
    assert {display_width(line) for line in lines[1:]} == {len("plain") + 2 + 1 + 2 + 1}
    right = aligned([Column(), Column(is_text=True)], [[n, "|"] for n in names])[1:]
    assert {display_width(line) for line in right} == {len("plain") + 2 + 1}
    assert longest(["実験", "abc"]) == 4


def test_what_would_move_a_terminals_cursor_is_written_out() -> None:
    assert printable("a\nb\x1b[2J\u202e") == "a\\nb\\x1b[2J\\u202e"
    assert printable("実験 e\u0301 \u0939\u094d\u200d🙂") == "実験 e\u0301 \u0939\u094d\u200d🙂"


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
