"""Tables that make a result worthless are trained on, and each warning says what is so, where, and what to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetuning import write_table

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.errors import UserError
from nystromformer.tasks.documents.answer import Answer, Kind
from nystromformer.tasks.documents.cut import Cut, Rule
from nystromformer.tasks.documents.divide import WIDEST_TEST, Division, divide, warn_of_few_rows
from nystromformer.tasks.documents.labels import Look, warn_of_rare_labels
from nystromformer.tasks.documents.metrics import MAIN
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.finetuning.definition import Loading, Splits
from nystromformer.tasks.finetuning.examples import Labels, Texts

LENGTH = 32


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Loading:
    return Loading(train_tokenizer(["a text"], 300), LENGTH, False, None, tmp_path_factory.mktemp("cache"))


def load(loading: Loading, train: Path, test: Path | None = None, **asked: Any) -> Splits:
    question = Question("t", str(train), "body", "label", None if test is None else str(test), **asked)
    return Documents(question).load(loading)


def about(warnings: list[str], words: str) -> list[str]:
    return [text for text in warnings if words in text]


@pytest.mark.parametrize("kind", ["classes", "several"])
def test_labels_without_rows_and_with_one_row(kind: Kind) -> None:
    """Named are those without a training row, and those that are trained on from the only row of the table."""
    answer = Answer(kind, ("a", "b", "c", "d"))
    trained: Labels = np.asarray([0, 0, 1, 3])
    trained = np.eye(4, dtype=np.float32)[trained] if kind == "several" else trained
    found = warn_of_rare_labels(Look(answer, {"a": 3, "b": 1, "c": 1, "d": 2}, [], []), trained)
    assert found == ["no training row has the label c", "in only one row, too little to learn from: b"]
    assert warn_of_rare_labels(Look(Answer("value"), {}, [], []), np.zeros(3, dtype=np.float32)) == []


def test_a_label_in_one_row_of_the_table(loading: Loading, tmp_path: Path) -> None:
    rows = [(f"text {number}", "xy"[number % 2]) for number in range(20)]
    train = write_table(tmp_path / "t.csv", ("body", "label"), [*rows, ("a text", "once"), ("b", "two"), ("c", "two")])
    of_file = load(loading, train, division=Division(str(train))).warnings
    assert len(about(of_file, f"{train}: in only one row, too little to learn from: once")) == 1
    with pytest.raises(UserError, match="in only one row: once: add rows"):
        load(loading, train)


def split_of(rows: int, name: str = "t test") -> Texts:
    return Texts(name, ["text"] * rows, labels=np.zeros(rows, dtype=np.int64))


def test_small_splits() -> None:
    """Told is half of the 95 % interval, wherever that of an accuracy of 50 % is too wide."""
    for rows in range(1, 800, 7):
        found = warn_of_few_rows(split_of(rows), "accuracy", "; more", WIDEST_TEST)
        assert bool(found) == (1.96 * (0.25 / rows) ** 0.5 > 0.05)
        off = 196 * (0.8 * 0.2 / rows) ** 0.5
        said = f"an accuracy of 80 % on it is uncertain by ±{off:.0f} points (95 % confidence); more"
        assert all(text == f"t test has {rows} row{'s' * (rows > 1)}: {said}" for text in found)
    for metric in MAIN.values():
        assert len(warn_of_few_rows(split_of(40), metric, "")) == 1
    # 1.96 (1 - r²)/√n
    (said,) = warn_of_few_rows(split_of(40), "pearson", "")
    assert "a Pearson correlation of 80 % on it is uncertain by ±11 points" in said
    assert warn_of_few_rows(Texts("t test", ["text"] * 40), "accuracy", "") == [], "it is not scored"
    # A tenth of 1,000 rows is enough to choose by, whatever classes they are of.
    for classes in range(2, 100, 7):
        texts = Texts("t train", ["text"] * 1000, labels=np.arange(1000) % classes)
        assert warn_of_few_rows(divide(texts, Division(), True)[1], "accuracy", "") == []


@pytest.mark.parametrize(("rule", "part"), [("head", "end"), ("head_and_tail", "middle"), ("windows", None)])
def test_texts_that_are_mostly_cut(loading: Loading, tmp_path: Path, rule: Rule, part: str | None) -> None:
    def table(name: str, long: int, short: int) -> Path:
        rows = [*[("long " * LENGTH, "x")] * long, *[("short", "y")] * short]
        return write_table(tmp_path / name, ("body", "label"), rows)

    half, most, rest = table("half.csv", 4, 4), table("most.csv", 5, 4), table("rest.csv", 2, 2)
    for train, test in ((half, most), (most, half)):
        splits = load(loading, train, test, cut=Cut(rule), division=Division(str(rest)))
        of_cut = [about(each, "is dropped") for each in (splits.warnings, splits.test_warnings)]
        said = [f"the {part} of 5 of 9 texts is dropped, beyond --length 32; raise --length, or use --cut windows"]
        expected = [[f"t {split}: {text}" for text in said if part] for split in ("train", "test")]
        assert of_cut == ([expected[0], []] if train == most else [[], expected[1]])


def test_ids_that_repeat_in_each_table(loading: Loading, tmp_path: Path) -> None:
    def table(name: str, ids: str) -> Path:
        texts = [f"{name} {number}" if number != 1 else "" for number in range(len(ids))]
        return write_table(tmp_path / name, ("body", "label", "key"), zip(texts, "xyxyx", ids, strict=True))

    train, validation, test = table("t.csv", "abcda"), table("v.csv", "eaabc"), table("test.csv", "abcdd")
    asked: dict[str, Any] = {"division": Division(str(validation)), "skip_empty": True}
    splits = load(loading, train, test, id="key", **asked)
    of_ids = [about(each, "repeat an id") for each in (splits.warnings, splits.test_warnings)]
    assert [len(each) for each in of_ids] == [1, 1], "of the validation table a row was left out"
    assert of_ids[0][0].startswith(f"{train}: 1 of 4 rows repeat an id, such as 'a': prediction files cannot")
    assert of_ids[1][0].startswith(f"{test}: 1 of 4 rows repeat an id, such as 'd'")
    assert not about(load(loading, train, test, **asked).warnings, "repeat an id")
