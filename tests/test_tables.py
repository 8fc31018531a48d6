"""Tables as text: what is in a column stands in it, in Markdown and in a terminal."""

from nystromformer.tables import Column, aligned, display_width, markdown, printable

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


def test_what_would_move_a_terminals_cursor_is_written_out() -> None:
    assert printable("a\nb\x1b[2J\u202e") == "a\\nb\\x1b[2J\\u202e"
    assert printable("実験 e\u0301 \u0939\u094d\u200d🙂") == "実験 e\u0301 \u0939\u094d\u200d🙂"


def test_markdown_keeps_its_columns_whatever_is_in_a_cell() -> None:
    assert markdown(["a", ""], [["1 | 2", "ö"]]).splitlines() == ["| a |  |", "|---|---|", "| 1 \\| 2 | ö |"]
