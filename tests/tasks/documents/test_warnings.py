"""Tables that make a result worthless are trained on, and each warning says what is so, where, and what to do."""

from pathlib import Path
from typing import Any

import pytest
from finetuning import write_table

from nystromformer.data.tokenizer import train_tokenizer
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.finetuning.definition import Loading, Splits

LENGTH = 32


@pytest.fixture(scope="module")
def loading() -> Loading:
    return Loading(train_tokenizer(["a text"], 300), LENGTH, False, None)


def load(loading: Loading, train: Path, test: Path | None = None, **asked: Any) -> Splits:
    question = Question(str(train), "body", "label", None if test is None else str(test), task="t", **asked)
    return Documents(question).load(loading)


def about(warnings: list[str], words: str) -> list[str]:
    return [text for text in warnings if words in text]


@pytest.mark.parametrize(("rule", "part"), [("head", "end"), ("windows", None)])
def test_texts_that_are_mostly_cut(loading: Loading, tmp_path: Path, rule: str, part: str | None) -> None:
    def table(name: str, long: int, short: int) -> Path:
        rows = [*[("long " * LENGTH, "x")] * long, *[("short", "y")] * short]
        return write_table(tmp_path / name, ("body", "label"), rows)

    half, most, rest = table("half.csv", 4, 4), table("most.csv", 5, 4), table("rest.csv", 2, 2)
    for train, test in ((half, most), (most, half)):
        splits = load(loading, train, test, cut=rule, validation=str(rest))
        of_cut = [about(each, "is dropped") for each in (splits.warnings, splits.test_warnings)]
        said = [f"the {part} of 5 of 9 texts is dropped, beyond --length 32; raise --length, or use --cut windows"]
        expected = [[f"t {split}: {text}" for text in said if part] for split in ("train", "test")]
        assert of_cut == ([expected[0], []] if train == most else [[], expected[1]])
