"""Tables in every format give the same rows; what is none is refused by one message that names the row."""

import csv
import gzip
import io
import json
import re
import zipfile
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pytest
from finetuning import write_table
from hypothesis import given
from hypothesis import strategies as st
from pandas._libs.parsers import STR_NA_VALUES
from pyarrow import parquet

from nystromformer.errors import UserError
from nystromformer.tabular.cells import MISSING, text_of
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import columns_named, open_table

COLUMNS = ("body", "label", "a,b")
ROWS = [
    ("a plain text", "x", "1"),
    ('a "quoted", text\nof two lines\t.', "y", "2"),
    ("déjà 語 \N{GRINNING FACE}", "x", "3"),
] * 9
ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx")
MEANT = Reading(quotes=True)


def read(path: Path, content: bytes | str, columns: tuple[str, ...], reading: Reading = Reading()) -> list[Any]:  # noqa: B008
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(open_table(path, reading).rows(columns))


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    table = open_table(write_table(tmp_path / f"t{ending}", COLUMNS, ROWS), MEANT)
    assert table.columns == COLUMNS
    assert list(table.rows(COLUMNS)) == ROWS
    assert list(table.rows(("label", "body"))) == [(label, body) for body, label, _ in ROWS]
    assert next(iter(table.rows(("label", "label")))) == ("x", "x")
    with pytest.raises(UserError, match="expected one column stars, found 0; it has the columns body"):
        table.rows(("body", "stars"))


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]))] * 2), min_size=1
    ),
    st.sampled_from([",", "\t", ";"]),
)
def test_csv_is_read_as_the_standard_library_writes_it(rows: list[tuple[str, str]], delimiter: str) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([("one", "two"), *rows])
    path = Path("/tmp") / f"nystrom-table-{ord(delimiter)}.csv"
    assert read(path, text.getvalue(), ("one", "two"), MEANT) == rows


def test_names_of_columns(tmp_path: Path) -> None:
    """A column of row numbers without a name, as pandas writes it, blanks around names, and columns of no use."""
    path = tmp_path / "t.csv"
    assert read(path, ",body , label,x,x\r\n0,a,b,1,2\r\n", ("label", "body")) == [("b", "a")]
    table = open_table(path)
    assert table.columns == ("body", "label", "x", "x")
    assert columns_named("--text", "label, body", table) == ("label", "body")
    with pytest.raises(UserError, match=r"--text title,body: .*, found no title; it has the columns body,"):
        columns_named("--text", "title,body", table)
    assert columns_named("--text", "a,b", open_table(write_table(path, COLUMNS, ROWS))) == ("a,b",)


@pytest.mark.parametrize(
    "content",
    [
        *(
            "body,label\na,3.5\nb,x\n",
            "body,label\ra,3.5\rb,x\r",
            "body,label\r\na,3.5\r\n\r\nb,x",
            "\n\nbody,label\na,3.5\nb,x",
        ),
        *("body;label\na;3.5\nb;x\n", "body\tlabel\na\t3.5\nb\tx\n", "body|label\na|3.5\nb|x\n"),
        *(
            "sep=;\nbody;label\na;3.5\nb;x\n",
            "sep=,\r\nbody,label\r\na,3.5\r\nb,x\r\n",
            '"body","label"\n"a","3.5"\n"b","x"\n',
        ),
    ],
)
def test_line_ends_and_what_is_between_cells(tmp_path: Path, content: str) -> None:
    assert read(tmp_path / "t.csv", content, ("body", "label")) == [("a", "3.5"), ("b", "x")]


NAMES = ("body", "label")
WRONG: dict[str, tuple[str, bytes | str, str]] = {
    "ending": (
        "t.ods",
        b"",
        "expected a file that ends in .csv, .tsv, .* or .xlsx, found .ods",
    ),
    "empty": ("t.csv", "", "expected a header and rows, found an empty file"),
    "no lines": ("t.jsonl", "\n", "expected objects of JSON"),
    "no rows of JSON": ("t.json", "[]", "expected objects of JSON"),
    "a column twice": ("t.csv", "body,label,body\na,b,c\n", "expected one column body, found 2"),
    "a column without a name": (
        "t.csv",
        "body,\na,b\n",
        "expected one column label, found 0; .* columns body$",
    ),
    "within quotes": ("t.csv", 'body,label\na,x\n"b and so', "row 2: it ends within quotes: the file ends early"),
    "within a row": ("t.csv", "body,label\na,x\nb", "row 2: expected 2 cells, found 1: the file ends early"),
    "a cell too many": (
        "t.csv",
        "body,label\na,x\nb,c,y\n",
        "row 2: expected 2 cells, found 3: .* not quoted holds a delimiter",
    ),
    "cut JSON": ("t.jsonl", '{"body": "a", "label": 1}\n{"body": "b', "row 2: expected an object of JSON.*ends early"),
    "cut array": ("t.json", '[{"body": "a"', "expected an array of objects .*ends early"),
    "no object": ("t.jsonl", '{"body": "a", "label": 1}\n[1]\n', r"row 2: expected an object of JSON, found \[1\]"),
    "no parquet": ("t.parquet", "PAR1 and then not", "expected a Parquet file, found a damaged one"),
    "no Excel": ("t.xlsx", b"PK\x03\x04 no", "cannot be read as an Excel file: "),
    "header again": (
        "t.csv",
        "body,label\na,x\nbody,label\nb,y\nBody , LABEL\n",
        "expected one header, found it again in the rows 2, 4, as in joined files",
    ),
    "joined rows": (
        "t.tsv",
        'body\tlabel\nc\tz\n"a\tx\nb"\ty\n',
        "row 2: body has both a delimiter and a line end",
    ),
    "joined by \\r": ("t.csv", 'body,label\r"a,x\rb",y\r', "row 1: body has both .* add --no_quotes; .* add --quotes"),
    "gzip": ("t.csv", gzip.compress(b"body,label\n"), "expected text, found a file compressed by gzip: decompress it"),
    "UTF-16": ("t.csv", "body,label\na,x\n".encode("utf-16"), "expected text in utf-8, .* or name its --encoding"),
    "nested": (
        "t.json",
        '{\n "version": 1,\n "data": [{"body": "a"}]}',
        "expected a list of rows, .* of which data holds what may be meant",
    ),
    "nested in a line": ("t.jsonl", '{"rows": [["a", "x"]]}', "of which rows holds what may be meant"),
    "columns of JSON": ("t.json", '{"body": {"0": "a"}, "label": {"0": 1}}', "of which body, label holds .* to_json"),
    "folder": ("folder/readme.txt", "a", "expected a folder for each class with .txt files in it, found none"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_table(tmp_path: Path, case: str) -> None:
    name, content, said = WRONG[case]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=said):
        list(open_table(path.parent if "/" in name else path).rows(NAMES))


def test_quotes_that_quote_nothing(tmp_path: Path) -> None:
    """As GLUE's files have them; and texts of several lines, where they are meant."""
    unquoted = 'body\tlabel\n"Aye\tx\n6" long\ty\n""\tx\nno"\ty\n'
    rows = read(tmp_path / "t.tsv", unquoted, NAMES, Reading(quotes=False))
    assert rows == [('"Aye', "x"), ('6" long', "y"), ('""', "x"), ('no"', "y")]
    quoted = 'body,label\n"a,\nb",x\n'
    assert read(tmp_path / "t.csv", quoted, NAMES, MEANT) == [("a,\nb", "x")]
    assert read(tmp_path / "t.csv", 'body,label\n"a\nb",x\n"c, d",y\n', NAMES) == [("a\nb", "x"), ("c, d", "y")]


def test_rows_that_are_none_stand_between_the_others(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("body,label\n" + "a,x\n" * 5000 + "b\n" + "a,x\n" * 3 + "c,d,e\n\nf\n")
    found = list(open_table(path).rows_or_errors(NAMES))
    bad = {number: str(row) for number, row in enumerate(found, start=1) if isinstance(row, UserError)}
    assert list(bad) == [5001, 5005, 5006]
    assert all(f"row {number:,}: expected 2 cells" in text for number, text in bad.items())
    with pytest.raises(UserError, match="row 5,001"):
        list(open_table(path).rows(NAMES))


def test_a_whole_table_as_pyarrow_has_it(tmp_path: Path) -> None:
    """Of a CSV file all columns are text, and an empty cell is null; Excel's first line and quotes are understood."""
    path = tmp_path / "t.csv"
    path.write_text('sep=;\nclient; amount;note\r\n007;1.5;"a;\nb ""c"""\r\n\r\n8;;d\r\n')
    expected = {"client": ["007", "8"], "amount": ["1.5", None], "note": ['a;\nb "c"', "d"]}
    assert open_table(path).arrow().to_pydict() == expected
    path.write_text("client,x\n1,2\n3\n")
    with pytest.raises(UserError, match=r"t.csv: CSV parse error: Row #3: Expected 2 columns, got 1: 3"):
        open_table(path).arrow()
    parquet_table = open_table(write_table(tmp_path / "t.parquet", COLUMNS, ROWS)).arrow()
    assert parquet_table["label"].to_pylist() == [label for _, label, _ in ROWS]
    with pytest.raises(UserError, match=r"expected a .csv, .tsv or .parquet file"):
        open_table(write_table(tmp_path / "t.jsonl", COLUMNS, ROWS)).arrow()


def test_where_relative_names_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("here", "default"):
        write_table(tmp_path / folder / "t.csv", (folder,), [("a",)])
    monkeypatch.chdir(tmp_path / "here")

    def find() -> tuple[str, ...]:
        return open_table("t.csv", default=tmp_path / "default").columns

    assert find() == ("here",)
    (tmp_path / "here" / "t.csv").unlink()
    assert find() == ("default",)
    (tmp_path / "default" / "t.csv").unlink()
    with pytest.raises(UserError, match=r"^t.csv: no such file"):
        find()


def test_classes_have_their_names(tmp_path: Path) -> None:
    """In Parquet files that the datasets library wrote; lists of them, too."""
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features(body=datasets.Value("string"), label=label, all=datasets.List(label))
    values = {"body": ["a", "b", "c", "d"], "label": [1, 0, -1, None], "all": [[1, 0], [], [0], None]}
    data = datasets.Dataset.from_dict(values, features)
    data.to_parquet(tmp_path / "t.parquet")
    rows = list(open_table(tmp_path / "t.parquet").rows(("label", "all")))
    assert rows == [("good", ["good", "bad"]), ("bad", []), (None, ["bad"]), (None, None)]
    info = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": ["bad"]}}}})
    found = pyarrow.table({"label": [0, 1]}).replace_schema_metadata({"huggingface": info})
    parquet.write_table(found, tmp_path / "t.parquet")
    with pytest.raises(UserError, match="label: expected the number of one of the classes bad, found 1"):
        list(open_table(tmp_path / "t.parquet").rows(("label",)))


def test_a_file_is_read_row_by_row(tmp_path: Path) -> None:
    """What is wrong far behind is found when it is reached."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"body": str(number)}) + "\n" for number in range(1000)) + "no")
    rows = open_table(path).rows(("body",))
    assert [next(rows)[0] for _ in range(1000)] == [str(number) for number in range(1000)]
    with pytest.raises(UserError, match="row 1,001"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "body,label\ncafé “déjà vu”,x\n"),
        ("t.jsonl", '{"body": "café “déjà vu”", "label": "x"}\n'),
        ("t.json", '[{"body": "café “déjà vu”", "label": "x"}]'),
    ],
)
def test_encodings(tmp_path: Path, name: str, content: str) -> None:
    for encoding in ("cp1252", "utf-16", "utf-16-le", "utf-8-sig"):
        rows = read(tmp_path / name, content.encode(encoding), NAMES, Reading(encoding))
        assert rows == [("café “déjà vu”", "x")]
    with pytest.raises(UserError, match=rf"{name}: expected text in utf-8, .* --encoding, such as cp1252"):
        read(tmp_path / name, content.encode("cp1252"), NAMES)
    for encoding in ("latin-99", "base64"):
        with pytest.raises(UserError, match=f"--encoding '{encoding}': "):
            read(tmp_path / name, content, NAMES, Reading(encoding))


def test_a_folder_of_texts_for_each_class(tmp_path: Path) -> None:
    """What is called as IMDB's unlabelled reviews has no label."""
    texts = (("neg/a.txt", "bad\ntwice"), ("pos/b.txt", "good"), ("pos/c.md", "no text"), ("unsup/d.txt", "any"))
    for name, text in texts:
        path = tmp_path / "reviews" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = list(open_table(tmp_path / "reviews").rows(("text", "label", "file")))
    assert found == [("bad\ntwice", "neg", "neg/a.txt"), ("good", "pos", "pos/b.txt"), ("any", None, "unsup/d.txt")]
    (tmp_path / "reviews" / "pos" / "d.txt").write_bytes("café".encode("cp1252"))
    with pytest.raises(UserError, match=r"reviews: expected text in utf-8"):
        list(open_table(tmp_path / "reviews").rows(("text",)))


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_objects_may_leave_out_what_they_have_not(tmp_path: Path, ending: str) -> None:
    objects = [{"body": "a"}, {"body": "b", "label": "x"}, {"label": "y", "body": "c"}]
    content = json.dumps(objects) if ending == "json" else "\n".join(map(json.dumps, objects))
    assert read(tmp_path / f"t.{ending}", content, NAMES) == [("a", None), ("b", "x"), ("c", "y")]
    assert open_table(tmp_path / f"t.{ending}").columns == NAMES


def test_cells_that_are_no_text(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 31)
    for reading, expected in ((Reading(), None), (Reading(as_text=True), ["7", "7.5", "True", "2026-01-31 00:00:00"])):
        table = open_table(write_table(tmp_path / "t.csv", NAMES, ROWS[:0]), reading)
        cells = (7, 7.5, True, moment)
        if expected is not None:
            assert [text_of(table, 1, "body", cell) for cell in cells] == expected
            continue
        for cell in cells:
            with pytest.raises(UserError, match=r"row 3: expected text in body, found .*; --as_text reads numbers and"):
                text_of(table, 3, "body", cell)
    with pytest.raises(UserError, match=r"row 3: expected text in body, found \[1\]$"):
        text_of(table, 3, "body", [1])
    assert [text_of(table, 1, "body", cell) for cell in (None, float("nan"), "")] == [""] * 3
    ids = [text_of(table, 1, "id", cell, as_text=True) for cell in ("a", 7, 7.5, None, "")]
    assert ids == ["a", "7", "7.5", "", ""]
    with pytest.raises(UserError, match="row 3: expected text in body, found half of a surrogate pair"):
        text_of(table, 3, "body", "a\ud800")


def test_words_for_nothing_are_those_of_pandas() -> None:
    assert MISSING - {"?"} == STR_NA_VALUES - {""}


def test_sheets(tmp_path: Path) -> None:
    path = tmp_path / "t.xlsx"
    book = openpyxl.Workbook()
    book.active.append(["other"])
    sheet = book.create_sheet("reviews")
    for row in (["body", "stars", "when"], ["good", 5, datetime(2026, 1, 31)], [None, None, None], ["bad", 1.5, None]):
        sheet.append(row)
    book.save(path)
    found = list(open_table(f"{path}:reviews").rows(("body", "stars", "when")))
    assert found == [("good", 5, datetime(2026, 1, 31)), ("bad", 1.5, None)]
    # Some programs write a dimension that leaves rows out.
    too_small = tmp_path / "small.xlsx"
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(too_small, "w") as file:
        for name in whole.namelist():
            file.writestr(name, re.sub(rb'ref="A1:C\d"', b'ref="A1:B2"', whole.read(name)))
    assert list(open_table(f"{too_small}:reviews").rows(("body", "stars", "when"))) == found
    for place in (str(path), f"{path}:x"):
        with pytest.raises(UserError, match=r"expected one of its sheets, .*t.xlsx:SHEET: Sheet, reviews"):
            open_table(place)


def test_columns_of_parquet(tmp_path: Path) -> None:
    numbers = pyarrow.array([Decimal("3.00"), Decimal("2.50"), None])
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table([["a", "b", "c"], numbers, numbers], ["body", "label", "x"]), path)
    assert [cell for (cell,) in open_table(path).rows(("label",))] == [3, 2.5, None]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="expected a Parquet file, found a damaged one or one that ends early"):
        open_table(path)
