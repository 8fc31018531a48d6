"""What labels ask for, and their numbers; which labels are refused."""

from typing import Any

import numpy as np
import pytest

from nystromformer.errors import UserError
from nystromformer.tasks.documents.labels import LabelCells, kind_of, look_at, numbers_of
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.recipe import Answer


def cells(*labels: Any, columns: tuple[str, ...] = ("label",)) -> LabelCells:
    rows = [each if len(columns) > 1 else (each,) for each in labels]
    return LabelCells("t.csv", columns, ";", range(1, len(rows) + 1), rows)


def answer_of(labels: LabelCells, wanted: Any, order: tuple[str, ...] = ()) -> Answer:
    return look_at(labels, wanted, order).answer


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        (("b", "a", "b"), "classes", ("a", "b")),
        (("10", "9", "10"), "classes", ("9", "10")),
        ((2.0, 1, "2"), "classes", ("1", "2")),
        ((True, False, True), "classes", ("false", "true")),
        (("1", "two", "1"), "classes", ("1", "two")),
        (("0.5", "1", "2"), "value", ()),
        (tuple(range(21)), "value", ()),
        ((["b", "a"], [], ["b"]), "several", ("a", "b")),
        (("['b', 'a']", "[]", '["b"]', "('b',)"), "several", ("a", "b")),
        (("[b, a c]", "[1, 2.5]"), "several", ("1", "2.5", "a c", "b")),
        (("1.2.3", "1.2.4", "1.2.3"), "classes", ("1.2.3", "1.2.4")),
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
        (("1.0", "2.0", "other"), (), (1, 2.0)),
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
        (cells("a", "", "b", float("nan")), None, "found none in 2 of 4 rows, the first of them row 2"),
        (
            cells("1", "NA", "0", "?"),
            None,
            r"none in 2 of 4 .* row 2 \('NA'\): .*add --skip_empty to leave such rows out; --keep_na takes \?, NA as",
        ),
        *((cells("a", "b", each), None, "found none in 1 of 3 rows") for each in ("\u200b", "NULL", "<NA>")),
        (cells(*map(str, range(60)), "tbd"), None, "expected a number as in most rows of label, found 'tbd'"),
        *(
            (cells(each, "4", "5"), None, "row 1: expected plain numbers in label, such as 1234.5, found")
            for each in ("3,5", "1.234,5", "45 %", "(3)", "1 000")
        ),
        (cells("3,5", "4"), "value", "expected a number .*, such as 3.5, found '3,5'"),
        *(
            (cells(each, "x"), None, r"expected a list of labels such as \['a', 'b'\] .*, found")
            for each in ("['a', 'b']", "array(['a'])", '{"a": 1}', "[a, b]")
        ),
        (cells("['a', 'b']", "['a']"), "classes", "row 1: expected one label, found a list or an object written"),
        (cells("1", {"x": 1}), None, "row 2: expected a label that is a number or text, found {"),
        (cells("1", ["x"]), "classes", "row 2: expected a label that is a number or text, found .*--kind several"),
        (cells("0.5", "1.5", "other"), None, "row 3: expected a number as in most rows of label, found 'other'"),
        (cells(["a;b"], ["c"]), None, "expected labels without ';', .* found 'a;b': name another one"),
        (cells("1", "x"), "value", r"row 2: expected a number \(--kind value\), such as 3.5, found 'x'"),
        (cells("a", "['a' 'b']"), "several", "row 2: .* found a list or an object written as text"),
        (cells("low", "high"), "ordered", "expected ordered,order=LOW/…/HIGH"),
        (cells(*(f"id-{number}" for number in range(30))), None, "another label in each of its 30 rows"),
        (cells(("1", "2"), columns=("x", "y")), None, "row 1: expected 0 or 1 in y, found '2'"),
        (cells(("1", "0"), columns=("x", "y")), "classes", "--kind classes: expected one column of labels, found x, y"),
    ],
)
def test_labels_to_refuse(labels: LabelCells, kind: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        answer_of(labels, kind)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (("Pos", "pos", "b"), "'Pos' (1 row), 'pos' (1 row) differ only in case"),
        (("not spam", "not_spam", "b"), "differ only in case, quotes or what is between words"),
        (("pos", "neg", "unsup"), "'unsup' (1 row) may say that there is no label"),
        ((-1, 0, 1), "'-1' (1 row) may say that there is no label"),
    ],
)
def test_what_is_doubtful_is_named(labels: tuple[Any, ...], said: str) -> None:
    assert any(said in doubt for doubt in look_at(cells(*labels), None).doubts)
    assert look_at(cells("neg", "pos", "neg"), None).doubts == []
    assert look_at(cells(-1, 1, 1), None).doubts == []


def test_what_labels_were_taken_for_is_a_table() -> None:
    assert [line.split() for line in look_at(cells("b", "a", "b"), None).lines] == [
        ["label", "rows"],
        ["a", "1"],
        ["b", "2"],
    ]
    many = look_at(cells(*(f"c{number % 30}" for number in range(95))), None).lines
    assert (len(many), many[1].split(), many[-1]) == (22, ["c0", "4"], "… and 10 more")
    (line,) = look_at(cells("1.5", "3", "8"), None).lines
    assert line == "label: 3 different values from 1.5 to 8, 4.16667 on average"


def test_labels_that_were_not_learned() -> None:
    said = r"found others:\n  'c' in 2 rows, first in row 2\n  'd' in 1 row, first in row 3"
    with pytest.raises(UserError, match=said):
        numbers_of(Answer("classes", ("a", "b")), cells("a", "c", "d", "c"))
    with pytest.raises(UserError, match=r"'z' in 1 row, first in row 1"):
        numbers_of(Answer("several", ("a", "b")), cells("a;z"))


def test_an_order() -> None:
    with pytest.raises(UserError, match=r"--kind ordered,order: expected all classes of t.csv, found none of middle"):
        answer_of(cells("low", "middle"), "ordered", ("low", "high"))
    with pytest.raises(UserError, match="--kind ordered,order: expected each class once"):
        answer_of(cells("low", "high"), "ordered", ("low", "low"))


def test_flags() -> None:
    def asked(**flags: str) -> Question:
        return Question("some/my reviews (2).csv", "body", "label", **flags)  # type: ignore[arg-type]

    assert asked(class_weights="spam=3, other=0.5").weights == {"spam": 3.0, "other": 0.5}
    assert asked(class_weights="balanced").weights == "balanced"
    for text in ("spam", "spam=0", "spam=x", "a=1,a=2"):
        with pytest.raises(UserError, match="--class_weights"):
            _ = asked(class_weights=text).weights
    assert kind_of(None) == (None, ",", ())
    assert kind_of("several,separator= ;") == ("several", " ;", ())
    assert kind_of("ordered,order=low/very  high") == ("ordered", ",", ("low", "very high"))
    for text in ("stars", "value,order=1/2", "several,separator=", "ordered,separator=;"):
        with pytest.raises(UserError, match=f"--kind {text}: expected one of classes, several, value, ordered;"):
            kind_of(text)
    assert asked().name == "my-reviews-2"
    with pytest.raises(UserError, match=r"--task ../x"):
        _ = asked(task="../x").name
    assert asked(validation="0.2,seed=3").validation_table is None
    assert asked(validation="v.csv").validation_table == "v.csv"
    for flags, said in (
        ({"validation": "v.csv", "group": "author"}, "--validation v.csv: expected no --group"),
        ({"validation": "0.1,seed=5", "time": "day"}, "--time day: expected no seed of --validation with it"),
        ({"group": "author", "time": "day"}, "--time day: expected no --group with it"),
    ):
        with pytest.raises(UserError, match=said):
            _ = asked(**flags).validation_table
