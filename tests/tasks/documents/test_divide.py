"""Which rows are held out: a function of table and flags; of each class alike, whole groups, or the latest."""

from datetime import date, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.errors import UserError
from nystromformer.tasks.documents.divide import divide
from nystromformer.tasks.finetuning.examples import Texts


def texts(labels: Any) -> Texts:
    names = [str(number) for number in range(len(labels))]
    return Texts("t train", [f"text {name}" for name in names], None, np.asarray(labels, dtype=np.int64), names)


def held(given: Texts, validation: str, is_class: bool = True, **columns: Any) -> list[int]:
    """The numbers of the rows that are held out; the others are trained on, in order."""
    train, validation = divide(given, validation, is_class, **columns)
    assert train.ids is not None
    assert validation.ids is not None
    assert sorted(map(int, [*train.ids, *validation.ids])) == list(range(len(given)))
    assert list(map(int, train.ids)) == sorted(map(int, train.ids))
    assert (train.name, validation.name) == ("t train", "t validation")
    return list(map(int, validation.ids))


def test_a_seed_draws_a_share() -> None:
    given = texts([number % 3 == 0 for number in range(60)])
    plain = held(given, "0.2,seed=5", is_class=False)
    assert len(plain) == 12
    assert plain != held(given, "0.2,seed=6", is_class=False)


@given(st.lists(st.integers(0, 7), min_size=8, max_size=60), st.integers(0, 99))
def test_groups_stay_together(groups: list[int], seed: int) -> None:
    given = texts([0] * len(groups))
    if len(set(groups)) < 2:
        with pytest.raises(UserError, match=f"expected two groups or more, found {groups[0]} in every row"):
            divide(given, f"0.1,seed={seed}", True, groups)
        return
    chosen = held(given, f"0.3,seed={seed}", group=groups)
    assert not {groups[number] for number in chosen} & {groups[n] for n in range(len(groups)) if n not in chosen}


@pytest.mark.parametrize(
    "times",
    [
        ["3", "1", "2", "10", "4", "5", "6", "7", "8", "9"],
        [f"2026-01-{day:02d}" for day in (3, 1, 2, 10, 4, 5, 6, 7, 8, 9)],
        [date(2026, 1, day) for day in (3, 1, 2, 10, 4, 5, 6, 7, 8, 9)],
        [datetime(2026, 1, day, 12) for day in (3, 1, 2, 10, 4, 5, 6, 7, 8, 9)],
    ],
    ids=["numbers", "text", "dates", "moments"],
)
def test_the_latest_are_held_out(times: list[Any]) -> None:
    assert held(texts([0, 1] * 5), "0.2", time=times) == [3, 9]


def test_rows_of_one_time_stay_together() -> None:
    given = texts([0, 1] * 3)
    assert held(given, "0.5", time=[1, 1, 1, 1, 2, 2]) == [4, 5]
    with pytest.raises(UserError, match="too many rows have the latest time, so that none can be held out"):
        divide(given, "0.2", True, time=[1, 2, 2, 2, 2, 2])
    with pytest.raises(UserError, match="row 1: expected a number or a date such as 2026-01-31, found 'monday'"):
        divide(given, "0.2", True, time=["1", "monday", "2", "3", "4", "5"])
    with pytest.raises(UserError, match="expected numbers or dates in t train, found both"):
        divide(given, "0.2", True, time=["1", "2026-01-31", "2", "3", "4", "5"])


def test_nothing_is_left() -> None:
    with pytest.raises(UserError, match=r"--validation 0.01 of 6 rows leaves none to choose by"):
        divide(texts([0] * 6), "0.01", False)


@pytest.mark.parametrize("validation", ["0.1,seeds=1", "2", "0", "0.1,seed=-1"])
def test_shares_that_are_none(validation: str) -> None:
    with pytest.raises(UserError, match=f"--validation {validation}: expected a share between 0 and 1"):
        divide(texts([0, 1] * 6), validation, True)
