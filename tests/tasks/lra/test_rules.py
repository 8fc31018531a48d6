"""The simple rules that the Long Range Arena's scores are read against."""

import random
from pathlib import Path

import numpy as np
import pytest
from arena import Lra

from nystromformer.tasks.lra import rules
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.listops import OPERATORS, apply, parse
from nystromformer.tasks.lra.rules import Table, build_rules
from nystromformer.tasks.lra.store import Example, StoredSplit, TaskData, write_split

pytest.importorskip("sklearn")


def stored(folder: Path, split: str, examples: list[Example], classes: int, sequences: int = 1) -> StoredExamples:
    facts = write_split(folder, split, examples, TaskData("made up", classes, {}, sequences=sequences))
    return StoredExamples(split, StoredSplit(folder, split, facts, sequences), 4096)


def scores(task: str, splits: dict[str, StoredExamples]) -> dict[str, float]:
    train, validation, test = splits["train"], splits["validation"], splits["test"]
    return {rule.name: rule.accuracies(train, validation, {"": test})[""] for rule in build_rules(task)}


def test_a_table_takes_the_commonest_class_and_a_coarser_key_where_it_knows_none() -> None:
    table = Table().fit([("a", 1), ("a", 1), ("a", 2), ("b", 1)], np.array([3, 3, 5, 7]))
    assert table.predict([("a", 1), ("a", 2), ("a", 9), ("c", 1)]).tolist() == [3, 5, 3, 3]
    assert Table().fit([("a",), ("a",)], np.array([4, 2])).predict([("a",)]).tolist() == [2], "the smallest of equals"


@pytest.mark.parametrize(
    ("text", "outermost"),
    [
        ("[MAX 2 [MIN 9 [SM 1 2 ] ] 3 [MED 4 5 ] [MIN 1 1 ] ]", (1, 3, (0, 0, 2))),
        ("[SM [MIN 1 2 ] ]", (3, None, (0,))),
        ("7", (None, 7, ())),
        ("", (None, None, ())),
    ],
)
def test_the_outermost_list_of_an_expression(text: str, outermost: tuple[object, ...]) -> None:
    assert rules._read_outermost(parse(text)) == outermost


def test_the_rules_of_listops_know_what_their_names_say(tmp_path: Path) -> None:
    """Flat lists are what the second rule is about."""
    generator = random.Random(0)

    def flat() -> Example:
        operator, digits = generator.choice(OPERATORS), generator.choices(range(10), k=4)
        tokens = parse(f"{operator} {' '.join(map(str, digits))} ]")
        return [tokens], apply(OPERATORS.index(operator), digits)

    splits = {
        name: stored(tmp_path, name, [flat() for _ in range(400)], 10) for name in ("train", "validation", "test")
    }
    found = scores("listops", splits)
    assert found["operator and direct digits"] == found["operator, direct digits and next operators"] > 0.98
    assert 0.1 < found["outermost operator"] < 1


def test_baselines_without_training(lra: Lra) -> None:
    assert lra("--steps", 0, "--baselines") == [], "nothing was trained"
    shown = lra.capsys.readouterr().out
    assert all(name in shown for name in ("majority class", *(rule.name for rule in build_rules("listops"))))
    assert "--baselines" in lra.refuse("--steps", 0)
