"""The temperature that makes probabilities fit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from nystromformer.tasks.finetuning.calibration import (
    COLDEST,
    HOTTEST,
    LEAST_ROWS,
    temperature_of,
)
from nystromformer.tasks.finetuning.target import Classes, Ordered, Several, Value


@given(st.integers(LEAST_ROWS, 400), st.integers(2, 4), st.floats(0.2, 5), st.integers(0, 100))
def test_it_is_the_one_that_a_solver_finds_less_what_chance_gives(
    rows: int, classes: int, spread: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores, labels = spread * random.standard_normal((rows, classes)), random.integers(0, classes, rows)

    def loss(log_temperature: float) -> float:
        scaled = torch.from_numpy(scores) / np.exp(log_temperature)
        logs, smoothing = scaled.log_softmax(1).numpy(), 1 / (rows + 1)
        return float(-((1 - smoothing) * logs[np.arange(rows), labels] + smoothing * logs.mean(1)).sum())

    bounds = (np.log(COLDEST), np.log(HOTTEST))
    best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x
    error = (loss(best - 0.01) - 2 * loss(best) + loss(best + 0.01)) / 1e-4
    ours = temperature_of(Classes(classes), torch.from_numpy(scores), torch.from_numpy(labels))
    assert np.log(ours or 1.0) == pytest.approx(best * max(0.0, 1 - 1 / (error * best**2)), abs=2e-3, rel=1e-2)


def test_certainty_without_reason_is_cooled_down_and_what_fits_is_left_alone() -> None:
    """Scores of a model that is right in 70 % of the cases and says 99 %."""
    torch.manual_seed(0)
    truth = torch.randint(0, 3, (3000,))
    told = torch.where(torch.rand(3000) < 0.7, truth, torch.randint(0, 3, (3000,)))
    scores = 6.0 * torch.nn.functional.one_hot(told, 3).float()
    temperature = temperature_of(Classes(3), scores, truth)
    assert temperature is not None
    assert 2 < temperature < 5
    assert float((scores / temperature).softmax(1).max(1).values.mean()) == pytest.approx(0.8, abs=0.02)
    assert temperature_of(Classes(3), scores[: LEAST_ROWS - 1], truth[: LEAST_ROWS - 1]) is None, "too few to tell"
    # Of models that say what is true the samples' own temperatures scatter around 1: mostly that is all there is.
    right = torch.randn(20, 300, 2)
    drawn = torch.distributions.Categorical(logits=right).sample()
    found = [temperature_of(Classes(2), scores, labels) for scores, labels in zip(right, drawn, strict=True)]
    assert found.count(None) > 10


def test_kinds_of_labels() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(500, 3), torch.randint(0, 4, (500,))
    for target, known in ((Several(3), (torch.rand(500, 3) < 0.5).float()), (Ordered(4), labels)):
        assert (temperature_of(target, 9 * scores, known) or 1.0) >= (temperature_of(target, scores, known) or 1.0)
    assert temperature_of(Value(), scores[:, :1], scores[:, 0]) is None
