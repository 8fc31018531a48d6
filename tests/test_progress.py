"""How far a command is, as a line of its log, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.progress import WorkDone

LABELS = st.sampled_from(["wiki", "rows", "cp-0003 (1 of 5)", "a: b", "12:30 x", "語"])


def test_words() -> None:
    work = WorkDone("wiki", 345.24, 1200, "MB", 120_400, "words", 184)
    assert str(work) == "wiki: 345.2 of 1200.0 MB, 120k words/s, 3:04 left"
    assert work.short == "wiki: 345.2/1200.0 MB"
    assert str(WorkDone("cp-0003", 7, 10, "batches")) == "cp-0003: 7 of 10 batches"
    assert str(WorkDone("hub", 7, None, "MB")) == "hub: 7.0 MB"


@given(
    label=LABELS,
    done=st.integers(0, 10**9),
    total=st.none() | st.integers(0, 10**9),
    unit=st.sampled_from(["MB", "batches", "files"]),
    rate=st.none() | st.integers(0, 10**6).map(lambda thousands: 1000.0 * thousands),
    left=st.none() | st.integers(0, 10**7),
)
def test_there_and_back(
    label: str, done: int, total: int | None, unit: str, rate: float | None, left: int | None
) -> None:
    work = WorkDone(label, done, total, unit, rate, seconds_left=left)
    assert WorkDone.parse(str(work)) == work


@pytest.mark.parametrize(
    "line", ["", "wiki", "wiki: read", "rows: 7 of them already finished", "x: 1 of 2 MB, soon", "cp-0003.cp scored"]
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert WorkDone.parse(line) is None
