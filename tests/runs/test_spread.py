"""Figures over seeds, and what is noise."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nystromformer.runs.figures import Spread, mark, rows_behind, standard_error

shares = st.floats(0, 1)
deviations = st.none() | st.floats(0, 0.2)


@pytest.mark.parametrize(("share", "metric"), [(0.05, "accuracy"), (0.8, "accuracy_mismatched")])
def test_the_error_of_a_share_is_that_of_drawn_rows(metric: str, share: float) -> None:
    random = np.random.default_rng(0)
    drawn = random.binomial(400, share, 20000) / 400
    assert standard_error(metric, share, 400) == pytest.approx(drawn.std(), rel=0.03)


@pytest.mark.parametrize(("correlation", "metric"), [(0.0, "pearson"), (0.9, "pearson_spearman")])
def test_the_error_of_a_correlation_is_that_of_drawn_rows(metric: str, correlation: float) -> None:
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(2, 3000, 400))
    y = correlation * x + math.sqrt(1 - correlation**2) * noise
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    assert standard_error(metric, correlation, 400) == pytest.approx(np.std(correlations), rel=0.06)


@given(shares, shares, deviations, deviations, st.integers(10, 100_000))
def test_marks_say_near_below_or_nothing(one: float, other: float, a: float | None, b: float | None, rows: int) -> None:
    figure, baseline = Spread(one, a), Spread(other, b)
    shown = mark("accuracy", figure, [baseline], rows)
    variance = sum(x**2 for x in (a, b) if x) + sum(p * (1 - p) / rows for p in (one, other))
    assume(abs((one - other) ** 2 - 4 * variance) > 1e-12)
    near = (one - other) ** 2 < 4 * variance
    assert shown == ("≈" if near else "<" if one < other else "")
    assert (shown == "≈") == (mark("accuracy", baseline, [figure], rows) == "≈")
    if shown != "≈":
        assert mark("accuracy", figure, [baseline], 100 * rows) == shown, "more rows make it no less sure"


def test_rows_behind_a_metric() -> None:
    rows = {"train": 1, "validation": 2, "validation_mismatched": 3}
    assert [rows_behind(name, rows) for name in ("accuracy", "accuracy_mismatched")] == [2, 3]
    assert rows_behind("accuracy_mismatched", {"train": 1, "validation": 2}) == 2
