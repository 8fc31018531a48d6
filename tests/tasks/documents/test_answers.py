"""What labels ask for, and their numbers; which labels are refused."""

from typing import Any

import numpy as np
import pytest

from nystromformer.errors import UserError
from nystromformer.tasks.documents.answer import Answer, answer_of, numbers_of
from nystromformer.tasks.documents.label_cells import LabelCells
from nystromformer.tasks.documents.question import kind_of, name_of, weights_of


def cells(*labels: Any, columns: tuple[str, ...] = ("label",)) -> LabelCells:
    rows = [each if len(columns) > 1 else (each,) for each in labels]
    return LabelCells("t.csv", columns, ";", [3 * number + 1 for number in range(len(rows))], rows)


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        (("b", "a", "b"), "classes", ("a", "b")),
        (("10", "9", "10"), "classes", ("9", "10")),
        ((1, 0, 1), "classes", ("0", "1")),
        ((2.0, 1.0, 2.0), "classes", ("1", "2")),
        (("2.0", "1", "2"), "classes", ("1", "2")),
        ((True, False, True), "classes", ("false", "true")),
        (("1", "two", "1"), "classes", ("1", "two")),
        (("0.5", "two", "two"), "classes", ("0.5", "two")),
        (("0.5", "1", "2"), "value", ()),
        (tuple(range(21)), "value", ()),
        ((["b", "a"], [], ["b"]), "several", ("a", "b")),
    ],
)
def test_the_kind_that_labels_tell(labels: tuple[Any, ...], kind: str, names: tuple[str, ...]) -> None:
    answer = answer_of(cells(*labels), None)
    assert (answer.kind, answer.names) == (kind, names)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((1234567890123456789, 1234567890123456790, 42), ("1234567890123456789", "1234567890123456790", "42")),
        (("007", "7", "07", "7"), ("007", "07", "7")),
        (("1e2", "100"), ("100", "1e2")),
        (("-0", "0.0", "1.00"), ("0", "1")),
        ((1e300, 2.0), ("2", "1e+300")),
    ],
)
def test_what_is_spelt_otherwise_is_another_class(labels: tuple[Any, ...], names: tuple[str, ...]) -> None:
    assert set(answer_of(cells(*labels), "classes").names) == set(names)


@pytest.mark.parametrize(
    ("train", "order", "other"),
    [
        (("1.0", "2.0", "n/a"), (), ("1.0", "2.0")),
        (("1.0", "2.0", "n/a"), (), (1, 2.0)),
        (("1", "2", "2"), (), ("1.0", "2.00")),
        (("1", "2", "3"), ("1.0", "2.0", "3.0"), ("1", 2)),
        (("01", "02", "02"), ("01", "02"), ("01", "02")),
    ],
)
def test_another_table_may_write_numbers_otherwise(train: Any, order: Any, other: Any) -> None:
    answer = answer_of(cells(*train), "ordered" if order else "classes", order)
    assert numbers_of(answer, cells(*other)).tolist() == [0, 1]
    assert not order or answer.names == order


def test_what_is_between_labels_is_cut_before_they_are_spelt() -> None:
    spaced = LabelCells("t.csv", ("label",), "\t", [1, 2], [(" y\tz ",), ("x  y",)])
    assert spaced.sets() == [["y", "z"], ["x y"]]
    columns = cells(("1.0", "0"), ("0.0", "1"), columns=("a", "b"))
    assert columns.sets() == [["a"], ["b"]], "as pandas writes them"


def test_numbers_of_each_kind() -> None:
    classes = cells("b", "a", " b ")
    assert numbers_of(answer_of(classes, None), classes).tolist() == [1, 0, 1]
    several = cells("x; y", "", "y;y")
    answer = answer_of(several, "several")
    assert answer.names == ("x", "y")
    assert numbers_of(answer, several).tolist() == [[1, 1], [0, 0], [0, 1]]
    columns = cells(("1", "no"), (0, True), (None, "0"), columns=("x", "y"))
    assert numbers_of(answer_of(columns, None), columns).tolist() == [[1, 0], [0, 1], [0, 0]]
    values = cells("1", "3", "8")
    answer = answer_of(values, "value")
    assert answer.mean == 4
    found = numbers_of(answer, values)
    assert found.dtype == np.float32
    assert np.allclose(found * answer.deviation + answer.mean, [1, 3, 8])
    ordered = cells("low", "high", "low")
    answer = answer_of(ordered, "ordered", ("low", "middle", "high"))
    assert (answer.outputs, numbers_of(answer, ordered).tolist()) == (2, [0, 2, 0])


@pytest.mark.parametrize(
    ("labels", "kind", "said"),
    [
        (cells("a", "a"), None, "expected two classes or more, found 'a' in every row"),
        (cells("1", "1"), "value", "expected different values to learn, found 1 in every row"),
        (cells("a", "a"), "several", "that some rows have and others do not, found a in every row"),
        (cells("", ""), "several", "found none in any row"),
        (cells("a", "", "b", None), None, "no|found none in 2 of 4 rows, the first of them row 4"),
        (cells("a", float("nan")), None, "found none in 1 of 2 rows, the first of them row 4"),
        (cells("1", {"x": 1}), None, "row 4: expected a label that is a number or text, found an object"),
        (cells("1", ["x"]), "classes", "row 4: expected a label that is a number or text, found a list"),
        (cells("0.5", "1.5", "n/a"), None, "row 7: expected a number as in most rows of label, found 'n/a'"),
        (cells(["a;b"], ["c"]), None, "expected labels without ';', .* found 'a;b': name another one"),
        (cells("1", 1j), None, "row 4: expected a label that is a number or text, found 1j"),
        (cells("1", "x"), "value", r"row 4: expected a number \(--kind value\), found 'x'"),
        (cells("1", "x\ud800"), None, "row 4: expected text in utf-8"),
        (cells('["a", "b"]', "[]"), "several", r"row 1: expected labels with ';' .*, found a list written as text"),
        (cells("a", "[]"), "several", "row 4: .* found a list written as text"),
        (cells("low", "high"), "ordered", "expected ordered,order=LOW/…/HIGH"),
        (cells(*(f"id-{number}" for number in range(30))), None, "another label in each of its 30 rows"),
        (cells(("1", "2"), columns=("x", "y")), None, "row 1: expected 0 or 1 in y, found '2'"),
        (cells(("1", "0"), columns=("x", "y")), "classes", "--kind classes: expected one column of labels, found x, y"),
    ],
)
def test_labels_to_refuse(labels: LabelCells, kind: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        answer_of(labels, kind)


def test_labels_that_were_not_learned() -> None:
    with pytest.raises(
        UserError, match=r"found others:\n  'c' in 2 rows, first in row 4\n  'd' in 1 row, first in row 7"
    ):
        numbers_of(Answer("classes", ("a", "b")), cells("a", "c", "d", "c"))
    with pytest.raises(UserError, match=r"'z' in 1 row, first in row 1"):
        numbers_of(Answer("several", ("a", "b")), cells("a;z"))


def test_an_order() -> None:
    with pytest.raises(UserError, match=r"--kind ordered,order: expected all classes of t.csv, found none of middle"):
        answer_of(cells("low", "middle"), "ordered", ("low", "high"))
    with pytest.raises(UserError, match="--kind ordered,order: expected each class once"):
        answer_of(cells("low", "high"), "ordered", ("low", "low"))


def test_flags() -> None:
    assert weights_of("spam=3, other=0.5") == {"spam": 3.0, "other": 0.5}
    assert weights_of("balanced") == "balanced"
    for text in ("spam", "spam=0", "spam=x", "a=1,a=2"):
        with pytest.raises(UserError, match="--class_weights"):
            weights_of(text)
    assert kind_of(None) == (None, ",", ())
    assert kind_of("several,separator= ;") == ("several", " ;", ())
    assert kind_of("ordered,order=low/very  high") == ("ordered", ",", ("low", "very high"))
    for text in ("stars", "value,order=1/2", "several,separator=", "ordered,separator=;"):
        with pytest.raises(UserError, match=f"--kind {text}: expected one of classes, several, value, ordered;"):
            kind_of(text)
    assert name_of(None, "some/my reviews (2).csv") == "my-reviews-2"
    assert name_of(None, "hub:a/b:train") == "a-b-train"
    with pytest.raises(UserError, match=r"--task ../x"):
        name_of("../x", "t.csv")
