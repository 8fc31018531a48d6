"""Tables in every format give the same rows; what is none is refused by one message that names the row."""

import json
import re
import zipfile
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import openpyxl
import pytest
from finetuning import write_table

from nystromformer.errors import UserError
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.source import open_place, read_rows
from nystromformer.tasks.documents.table import columns_named, open_table

COLUMNS = ("body", "label", "a,b")
ROWS = [
    ("a plain text", "x", "1"),
    ('a "quoted", text\nof two lines\t.', "y", "2"),
    ("déjà 語 \N{GRINNING FACE}", "x", "3"),
] * 9
QUESTION = Question("t", "t.csv", "body", "label")
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    table = open_table(write_table(tmp_path / f"t{ending}", COLUMNS, ROWS))
    assert table.columns == COLUMNS
    assert list(table.rows(COLUMNS)) == ROWS
    assert list(table.rows(("label", "body"))) == [(label, body) for body, label, _ in ROWS]
    assert next(iter(table.rows(("label", "label")))) == ("x", "x")
    with pytest.raises(UserError, match="expected one column stars, found 0; it has the columns body"):
        table.rows(("body", "stars"))


def test_names_of_columns(tmp_path: Path) -> None:
    table = open_table(write_table(tmp_path / "t.csv", COLUMNS, ROWS))
    assert columns_named("--text", "a,b", table) == ("a,b",)
    assert columns_named("--text", "label, body", table) == ("label", "body")
    with pytest.raises(UserError, match=r"--text title,body: .* of .*t.csv, found no title; it has the columns body,"):
        columns_named("--text", "title,body", table)


def test_the_header_of_others(tmp_path: Path) -> None:
    """A column of row numbers without a name, as pandas writes it, blanks around names, and columns of no use."""
    path = tmp_path / "t.csv"
    path.write_bytes(b",body , label,x,x\r\n0,a,b,1,2\r\n")
    table = open_table(path)
    assert table.columns == ("body", "label", "x", "x")
    assert list(table.rows(("label", "body"))) == [("b", "a")]
    with pytest.raises(UserError, match="expected one column x, found 2"):
        table.rows(("x",))


def test_columns_of_parquet(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers = arrow.array([Decimal("3.00"), Decimal("2.50"), None])
    parquet.write_table(
        arrow.table([["a", "b", "c"], numbers, numbers], ["body", "label", "x"]), tmp_path / "t.parquet"
    )
    assert [cell for (cell,) in open_table(tmp_path / "t.parquet").rows(("label",))] == [3, 2.5, None]
    parquet.write_table(arrow.table([["a"], ["b"]], ["body", "body"]), tmp_path / "twice.parquet")
    with pytest.raises(UserError, match="expected one column body, found 2"):
        open_table(tmp_path / "twice.parquet").rows(("body",))


@pytest.mark.parametrize("nothing", ["", None])
def test_a_test_table_with_an_empty_column_of_labels_has_none(tmp_path: Path, nothing: str | None) -> None:
    path = write_table(tmp_path / "t.jsonl", ("body", "label"), [("a", nothing), ("b", nothing)])
    assert read_rows(open_table(path), QUESTION, labelled=False).labels is None
    assert read_rows(open_table(path), QUESTION).labels is not None
    write_table(path, ("body", "label"), [("a", nothing), ("b", "x")])
    assert read_rows(open_table(path), QUESTION, labelled=False).labels is not None


def test_cells_that_are_no_text(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.jsonl", ("body", "label"), [("a", 1), (None, 2), (7, 3)])
    with pytest.raises(UserError, match=r"t.jsonl, row 3: expected text in body, found 7"):
        read_rows(open_table(path), QUESTION)
    write_table(path, ("body", "label"), [("a", 1), ("\ud800", 2)])
    with pytest.raises(UserError, match=r"row 2, body: expected text in utf-8, found another encoding"):
        read_rows(open_table(path), QUESTION)


@pytest.mark.parametrize("flag", ["group", "time"])
def test_a_row_without_a_group_or_a_time(tmp_path: Path, flag: str) -> None:
    table = open_table(write_table(tmp_path / "t.csv", ("body", "label", "when"), [("a", 1, 1), ("b", 2, " ")]))
    with pytest.raises(UserError, match=rf"--{flag}: .*t\.csv, row 2: expected a value, found an empty cell"):
        read_rows(table, replace(QUESTION, **{flag: "when"}), divided=True)  # type: ignore[arg-type]


def test_empty_texts_are_counted(tmp_path: Path) -> None:
    rows = [("a", "x"), ("", "y"), (" \t", "x"), ("b", "y")]
    table = open_table(write_table(tmp_path / "t.csv", ("body", "label"), rows))
    with pytest.raises(UserError, match=r"2 of 4 texts are empty, the first of them in row 2: .*--skip_empty"):
        read_rows(table, QUESTION)
    read = read_rows(table, replace(QUESTION, skip_empty=True))
    assert (read.texts, read.ids, read.left_out) == ([("a",), ("b",)], ["1", "4"], 2)
    assert read.labels is not None
    assert list(read.labels.rows) == [1, 4]


BAD: dict[str, tuple[str, bytes, str]] = {
    "no such ending": (
        "t.ods",
        b"",
        "expected a file that ends in .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .xlsx, found .ods",
    ),
    "empty": ("t.csv", b"", "expected a header and rows, found an empty file"),
    "no lines": ("t.jsonl", b"\n", "expected objects of JSON"),
    "twice": ("t.csv", b"body,label,body\na,b,c\n", "expected one column body, found 2"),
    "nameless": (
        "t.csv",
        b"body,\na,b\n",
        "expected one column label, found 0; it has the columns body$",
    ),
    "UTF-16": ("t.csv", "body,label\na,x\n".encode("utf-16"), "t.csv: expected text in utf-8, found another encoding"),
    "within quotes": ("t.csv", b'body,label\na,x\n"b and so', "row 2: it ends within quotes: the file ends early"),
    "within a row": ("t.csv", b"body,label\na,x\nb", "row 2: expected 2 cells, found 1: the file ends early"),
    "a cell too many": ("t.csv", b"body,label\na,x\nb,c,y\n", "row 2: expected 2 cells, found 3: .* is not quoted"),
    "cut JSON": ("t.jsonl", b'{"body": "a", "label": 1}\n{"body": "b', "row 2: expected an object of JSON.*ends early"),
    "no object": ("t.jsonl", b'{"body": "a", "label": 1}\n[1]\n', r"row 2: expected an object of JSON, found \[1\]"),
    "no parquet": ("t.parquet", b"PAR1 and then not", "expected a Parquet file, found a damaged one"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_table(tmp_path: Path, case: str) -> None:
    name, content, said = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        list(open_table(tmp_path / name).rows(("body", "label")))


UNQUOTED = b'body\tlabel\n"Aye\tx\n6" long\ty\n""\tx\n'


def test_quotes_that_quote_nothing(tmp_path: Path) -> None:
    """As GLUE's files have them."""
    path = tmp_path / "t.tsv"
    path.write_bytes(UNQUOTED)
    rows = list(open_table(path, is_quoted=False).rows(("body", "label")))
    assert rows == [('"Aye', "x"), ('6" long', "y"), ('""', "x")]
    with pytest.raises(UserError, match=r"row 1: .*, or a quote within a cell is not doubled"):
        list(open_table(path).rows(("body",)))


def test_parquet_that_ends_early(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.parquet", COLUMNS, ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="expected a Parquet file, found a damaged one or one that ends early"):
        open_table(path)


def test_where_relative_names_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("here", "default"):
        write_table(tmp_path / folder / "t.csv", (folder,), [("a",)])
    monkeypatch.chdir(tmp_path / "here")

    def find() -> tuple[str, ...]:
        return open_place("t.csv", tmp_path / "default", "train").columns

    assert find() == ("here",)
    (tmp_path / "here" / "t.csv").unlink()
    assert find() == ("default",)
    (tmp_path / "default" / "t.csv").unlink()
    with pytest.raises(UserError, match=r"^t.csv: no such file"):
        find()


def test_the_hub_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"hub:no/such:test: cannot be loaded from the hub: .*needs a network"):
        open_place("hub:no/such:test", tmp_path, "train")
    with pytest.raises(UserError, match=r"hub:a/b/c: expected hub:NAME, hub:NAME:SPLIT or hub:NAME@CONFIG:SPLIT"):
        open_place("hub:a/b/c", tmp_path, "train")


def test_the_hub_gives_names_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(body=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"]))
    data = datasets.Dataset.from_dict({"body": ["a", "b", "c"], "label": [1, 0, -1]}, features)
    asked: list[object] = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or data)
    table = open_place("hub:some/reviews@plain", Path(), "train")
    assert asked == [(("some/reviews", "plain"), {"split": "train"})]
    assert list(table.rows(("label", "body"))) == [("good", "a"), ("bad", "b"), (None, "c")]


def test_a_file_is_read_row_by_row(tmp_path: Path) -> None:
    """What is wrong far behind is found when it is reached."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"body": str(number)}) + "\n" for number in range(1000)) + "no")
    rows = open_table(path).rows(("body",))
    assert [next(rows)[0] for _ in range(1000)] == [str(number) for number in range(1000)]
    with pytest.raises(UserError, match="row 1,001"):
        next(rows)


def test_semicolons_are_recognised_and_decimal_commas_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('body;label\n"fine; really, fine";3,5\nbad;-1\n')
    rows = read_rows(open_table(path), replace(QUESTION, kind="value"))
    assert rows.texts == [("fine; really, fine",), ("bad",)]
    assert rows.labels is not None
    assert rows.labels.values() == [3.5, -1.0]
    path.write_text('"body";"label";"year"\n"fine";"1,2";"2026,5"\n"bad";"3";"2025"\n')
    assert read_rows(open_table(path), replace(QUESTION, time="year"), divided=True).time == ["2026.5", "2025"]
    several = read_rows(open_table(path), replace(QUESTION, kind="several")).labels
    assert several is not None
    assert [set(each) for each in several.sets()] == [{"1", "2"}, {"3"}], "the comma is between two labels"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "body,label\ncafé “déjà vu”,x\n"),
        ("t.jsonl", '{"body": "café “déjà vu”", "label": "x"}\n'),
        ("t.json", '[{"body": "café “déjà vu”", "label": "x"}]'),
    ],
)
def test_encodings(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("cp1252"))
    assert list(open_table(path, Reading(encoding="cp1252")).rows(("body", "label"))) == [("café “déjà vu”", "x")]
    with pytest.raises(UserError, match=rf"{name}, row 1, body: expected text in utf-8, .* --encoding, such as cp1252"):
        read_rows(open_table(path), QUESTION)


def test_a_folder_of_texts_for_each_class(tmp_path: Path) -> None:
    for name, text in (("neg/a.txt", "bad\ntwice"), ("pos/b.txt", "good"), ("pos/c.md", "no text")):
        path = tmp_path / "reviews" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = list(open_place("reviews", tmp_path, "train").rows(("text", "label", "file")))
    assert found == [("bad\ntwice", "neg", "neg/a.txt"), ("good", "pos", "pos/b.txt")]
    (tmp_path / "reviews" / "pos" / "d.txt").write_bytes("café".encode("cp1252"))
    with pytest.raises(UserError, match=r"pos/d.txt: expected text in utf-8"):
        list(open_place("reviews", tmp_path, "train").rows(("text",)))


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_objects_may_leave_out_what_they_have_not(tmp_path: Path, ending: str) -> None:
    path, objects = tmp_path / f"t.{ending}", [{"body": "a"}, {"body": "b", "label": "x"}, {"label": "y", "body": "c"}]
    path.write_text(json.dumps(objects) if ending == "json" else "\n".join(map(json.dumps, objects)))
    table = open_table(path)
    assert table.columns == ("body", "label")
    assert [tuple(row) for row in table.rows(("body", "label"))] == [("a", None), ("b", "x"), ("c", "y")]
    assert read_rows(table, replace(QUESTION, skip_empty=True)).texts == [("b",), ("c",)]


def test_ids_that_are_missing_or_no_text(tmp_path: Path) -> None:
    path, question = tmp_path / "t.jsonl", replace(QUESTION, id="id")
    ids = ["a", 7, 7.5, None, float("nan"), ""]
    path.write_text("\n".join(json.dumps({"body": "x", "label": "y", "id": each}) for each in ids))
    assert read_rows(open_table(path), question).ids == ["a", "7", "7.5", "", "", ""]
    path.write_text(json.dumps({"body": "x", "label": "y", "id": "\ud800"}))
    with pytest.raises(UserError, match=r"t.jsonl, row 1, id: expected text in utf-8"):
        read_rows(open_table(path), question)


def test_sheets(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    book = openpyxl.Workbook()
    book.active.append(["other"])
    sheet = book.create_sheet("reviews")
    for row in (["body", "stars", "when"], ["good", 5, datetime(2026, 1, 31)], [None, None, None], ["bad", 1.5, None]):
        sheet.append(row)
    book.save(path)
    found = list(open_table(path, Reading(sheet="reviews")).rows(("body", "stars", "when")))
    assert found == [("good", 5, datetime(2026, 1, 31)), ("bad", 1.5, None)]
    # Some programs write a dimension that leaves rows out.
    too_small = tmp_path / "small.xlsx"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(too_small, "w") as file:
        for name in whole.namelist():
            file.writestr(name, re.sub(rb'ref="A1:C\d"', b'ref="A1:B2"', whole.read(name)))
    assert list(open_table(too_small, Reading(sheet="reviews")).rows(("body", "stars", "when"))) == found
    with pytest.raises(UserError, match="--sheet with one of Sheet, reviews"):
        open_table(path)
    with pytest.raises(UserError, match="--sheet with one of Sheet, reviews"):
        open_table(path, Reading(sheet="x"))


@pytest.mark.parametrize("encoding", ["latin-99", "base64", "utf-16"])
def test_encodings_that_are_none(encoding: str) -> None:
    with pytest.raises(UserError, match=f"--encoding '{encoding}': expected a known encoding whose line ends are"):
        Reading(encoding)


@pytest.mark.parametrize(
    ("name", "content", "reading", "expected"),
    [
        ("t.json", b"[]", Reading(), "expected objects of JSON"),
        ("t.json", b"[1]", Reading(), "expected objects of JSON"),
        ("t.json", b"[{", Reading(), "expected an array of JSON objects"),
        ("t.xlsx", b"PK no", Reading(), "expected an Excel file, found something else"),
        ("t.csv", b"a\n", Reading(sheet="x"), "expected a file that ends in .xlsx with --sheet"),
        ("folder/readme.txt", b"a", Reading(), "expected a folder for each class with .txt files in it, found none"),
    ],
)
def test_files_of_no_table(tmp_path: Path, name: str, content: bytes, reading: Reading, expected: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(expected)):
        list(open_table(path.parent if "/" in name else path, reading).rows(()))
