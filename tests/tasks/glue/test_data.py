"""GLUE's TSV files: small ones with every quirk, and every bad input."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from finetuning import write_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.read import find_files, read_split
from nystromformer.tasks.glue.table_task import GlueSplit, GlueTask

BOM = b"\xef\xbb\xbf"
TRICKY = 'He said "no , that\u2028 \x85 \x0b\x0c \x1c it\'s\u00a0\ufeff half a quote "" '


def task(name: str) -> GlueTask:
    (only,) = find_tasks(name)
    return only


def read(name: str, folder: Path, split: str) -> Texts:
    texts, left_out = read_split(task(name), split, folder / name / task(name).split(split).files[0])
    assert left_out is None
    return texts


def labels_of(texts: Texts) -> list[float]:
    assert texts.labels is not None
    return list(texts.labels.tolist())


def put(path: Path, *rows: Sequence[str], end: str = "\n", bom: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = end.join("\t".join(row) for row in rows) + end
    path.write_bytes((BOM if bom else b"") + text.encode())
    return path


MRPC_HEADER = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
RTE_HEADER = ("index", "sentence1", "sentence2", "label")
STSB_HEADER = ("index", "sentence1", "sentence2", "score")


def put_rte(folder: Path, *labels: str, split: str = "train") -> Path:
    rows = ((str(n), f"first {n}", f"second {n}", label) for n, label in enumerate(labels))
    return put(folder / "RTE" / f"{split}.tsv", RTE_HEADER, *rows)


def test_cola_has_no_header_but_in_its_test_file(tmp_path: Path) -> None:
    put(tmp_path / "CoLA" / "train.tsv", ("gj04", "1", "", "Fine."), ("gj04", "0", "*", "Label wrong."))
    put(tmp_path / "CoLA" / "test.tsv", ("index", "sentence"), ("0", "Bill left."))
    train = read("CoLA", tmp_path, "train")
    assert (train.name, train.second, train.ids) == ("CoLA train", None, None)
    assert list(train.first) == ["Fine.", "Label wrong."]
    assert labels_of(train) == [1, 0]
    test = read("CoLA", tmp_path, "test")
    assert (list(test.first), test.labels) == (["Bill left."], None)


@pytest.mark.parametrize(("end", "bom"), [("\n", False), ("\r\n", True)])
def test_quotes_line_separators_crlf_and_a_bom(tmp_path: Path, end: str, bom: bool) -> None:
    rows = [("1", "7", "8", TRICKY, '"'), ("0", "7", "8", "plain", 'ends open "'), ("1", "7", "8", "", "x")]
    put(tmp_path / "MRPC" / "train.tsv", MRPC_HEADER, *rows, end=end, bom=bom)
    texts = read("MRPC", tmp_path, "train")
    assert list(texts.first) == [TRICKY, "plain", ""]
    assert texts.second == ['"', 'ends open "', "x"]
    assert labels_of(texts) == [1, 0, 1]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"])),
            st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"])),
            st.sampled_from(["entailment", "not_entailment"]),
        ),
        min_size=1,
    ),
    st.permutations(["sentence1", "sentence2", "label", "genre"]),
)
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[str, str, str]], columns: list[str]) -> None:
    named = [{"sentence1": a, "sentence2": b, "label": c, "genre": '"'} for a, b, c in rows]
    put(tmp_path / "RTE" / "dev.tsv", columns, *([row[column] for column in columns] for row in named))
    texts = read("RTE", tmp_path, "dev")
    assert texts.second is not None
    labels = (("entailment", "not_entailment")[number] for number in labels_of(texts))
    assert list(zip(texts.first, texts.second, labels, strict=True)) == rows


def test_labels(tmp_path: Path) -> None:
    """MNLI's are gold labels in the order of its classes, STS-B's float32; a test file's are not read."""
    header = ("index", "sentence1", "sentence2", "label1", "label2", "gold_label")
    golds = ("contradiction", "entailment", "neutral")
    rows = [(str(n), "a", "b", "neutral", "entailment", gold) for n, gold in enumerate(golds)]
    put(tmp_path / "MNLI" / "dev_matched.tsv", header, *rows)
    assert labels_of(read("MNLI", tmp_path, "dev_matched")) == [2, 0, 1]
    scores = [("0", "a", "b", score) for score in ("0", "3.800", "5.0")]
    put(tmp_path / "STS-B" / "dev.tsv", STSB_HEADER, *scores)
    np.testing.assert_array_equal(read("STS-B", tmp_path, "dev").labels, np.array([0, 3.8, 5], np.float32))
    put(tmp_path / "RTE" / "test.tsv", RTE_HEADER, ("0", "a", "b", "whatever"))
    assert read("RTE", tmp_path, "test").labels is None


def test_other_tables_than_tsv(tmp_path: Path) -> None:
    splits = (GlueSplit("train", ("train.csv",), 2), GlueSplit("dev", ("val.jsonl",), 2))
    other = replace(task("RTE"), name="Other", labels=("0", "1"), splits=splits)
    train = write_table(tmp_path / "Other" / "train.csv", RTE_HEADER, [(0, 'a "b", c', "d", 1), (1, "e", "f", 0)])
    dev = write_table(tmp_path / "Other" / "val.jsonl", RTE_HEADER, [(0, "g", "h", 1), (1, "i", "j", 2)])
    assert find_files(other, tmp_path) == {"train": train, "dev": dev}
    texts, _ = read_split(other, "train", train)
    assert (list(texts.first), labels_of(texts)) == (['a "b", c', "e"], [1, 0])
    texts, left_out = read_split(other, "dev", dev, skip_bad_rows=True)
    assert (list(texts.first), labels_of(texts)) == (["g"], [1])
    assert "row 2: expected label to be 0 or 1, found '2'" in str(left_out)


def test_optional_splits_and_the_diagnostic_set(tmp_path: Path) -> None:
    own = tmp_path / "glue" / "MNLI"
    for split in ("train", "dev_matched"):
        put(own / f"{split}.tsv", ("sentence1", "sentence2", "gold_label"), ("a", "b", "neutral"))
    assert list(find_files(task("MNLI"), tmp_path / "glue")) == ["train", "dev_matched"]
    for place in ("AX/AX.tsv", "diagnostic/diagnostic.tsv"):
        path = put(tmp_path / "glue" / place, ("index", "sentence1", "sentence2"), ("0", "a", "b"))
        found = find_files(task("MNLI"), tmp_path / "glue")
        assert list(found) == ["train", "dev_matched", "ax"]
        assert len(read_split(task("MNLI"), "ax", found["ax"])[0]) == 1
        path.unlink()
    (own / "dev_matched.tsv").unlink()
    with pytest.raises(UserError, match=r"dev_matched\.tsv: no such file"):
        find_files(task("MNLI"), tmp_path / "glue")


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"index\tsentence1\tsentence2\tlabel\n", r"RTE/train\.tsv: expected rows, found none$"),
        (
            b"a\tsentence1\tsentence2\tlabel\n0\ta\t\xe9\tentailment\n",
            r"RTE/train\.tsv: expected text in utf-8",
        ),
        (
            b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tyes\n1\ta\n",
            r"bad rows: 2 of 2|expected rows, found none but bad ones",
        ),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str, skip: bool) -> None:
    path = put_rte(tmp_path, "entailment")
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_split(task("RTE"), "train", path, skip_bad_rows=skip)


BAD_ROWS = [
    ("RTE", ("0", "a"), "expected 4 cells, found 2"),
    ("RTE", ("0", "a", "b", "entailment", "more"), "expected 4 cells, found 5"),
    ("RTE", ("0", "a", "b", "Entailment"), "expected label to be entailment or not_entailment, found 'Entailment'"),
    *(
        ("STS-B", ("0", "a", "b", value), f"expected score to be a number from 0 to 5, found '{value}'")
        for value in ("", "high", "nan", "-0.1", "5.01")
    ),
]


@pytest.mark.parametrize(("name", "row", "message"), BAD_ROWS)
def test_bad_rows(tmp_path: Path, name: str, row: Sequence[str], message: str) -> None:
    header, label = (RTE_HEADER, "not_entailment") if name == "RTE" else (STSB_HEADER, "1.0")
    good = ("7", "kept", "b", label)
    path = put(tmp_path / name / "dev.tsv", header, good, row, good, row, good)
    with pytest.raises(UserError, match=rf"dev\.tsv, row 2: {message}.* \(bad rows: 2 of 5\)\. .*--skip_bad_rows"):
        read_split(task(name), "dev", path)
    texts, left_out = read_split(task(name), "dev", path, skip_bad_rows=True)
    assert list(texts.first) == ["kept"] * 3
    assert texts.ids == ["0", "2", "4"], "numbers of the rows in the file"
    assert labels_of(texts) == [1] * 3
    assert "row 2: " in str(left_out)
    assert "(bad rows: 2 of 5), left out" in str(left_out)


def test_rows_of_a_test_file_are_never_left_out(tmp_path: Path) -> None:
    path = put(tmp_path / "RTE" / "test.tsv", RTE_HEADER[:3], ("0", "a", "b"), ("1", "a"))
    with pytest.raises(UserError, match=r"row 2: expected 3 cells.* but of test files"):
        read_split(task("RTE"), "test", path, skip_bad_rows=True)
