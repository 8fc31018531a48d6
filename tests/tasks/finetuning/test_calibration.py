"""The temperature that makes probabilities fit."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from nystromformer.tasks.documents.targets import Ordered, Several
from nystromformer.tasks.finetuning.calibration import COLDEST, HOTTEST, calibration_error_of, temperature_of
from nystromformer.tasks.finetuning.target import Classes, Value


@given(st.integers(2, 40), st.integers(2, 4), st.floats(0.2, 5), st.integers(0, 100))
def test_it_is_the_one_that_a_solver_finds(rows: int, classes: int, spread: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    scores, labels = spread * random.standard_normal((rows, classes)), random.integers(0, classes, rows)

    def loss(log_temperature: float) -> float:
        scaled = torch.from_numpy(scores) / np.exp(log_temperature)
        logs, smoothing = scaled.log_softmax(1).numpy(), 1 / (rows + 1)
        return float(-((1 - smoothing) * logs[np.arange(rows), labels] + smoothing * logs.mean(1)).mean())

    bounds = (np.log(COLDEST), np.log(HOTTEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    ours = temperature_of(Classes(classes), torch.from_numpy(scores), torch.from_numpy(labels))
    assert ours is not None
    assert loss(float(np.log(ours))) == pytest.approx(found.fun, abs=1e-6)


def test_certainty_without_reason_is_cooled_down() -> None:
    """Scores of a model that is right in 70 % of the cases and says 99 %."""
    torch.manual_seed(0)
    truth = torch.randint(0, 3, (3000,))
    told = torch.where(torch.rand(3000) < 0.7, truth, torch.randint(0, 3, (3000,)))
    scores = 6.0 * torch.nn.functional.one_hot(told, 3).float()
    temperature = temperature_of(Classes(3), scores, truth)
    assert temperature is not None
    assert 2 < temperature < 5
    before, after = (calibration_error_of(Classes(3), each, truth) for each in (scores, scores / temperature))
    assert before > 0.15
    assert after < 0.02


def test_kinds_of_labels() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(50, 3), torch.randint(0, 4, (50,))
    for target, known in ((Several(3), (torch.rand(50, 3) < 0.5).float()), (Ordered(4), labels)):
        assert temperature_of(target, 9 * scores, known) >= temperature_of(target, scores, known)  # type: ignore[operator]
        assert 0 <= calibration_error_of(target, scores, known) <= 1
    assert temperature_of(Value(), scores[:, :1], scores[:, 0]) is None


def test_few_rows_that_are_all_right_do_not_make_it_certain() -> None:
    scores, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    temperature = temperature_of(Classes(2), scores, labels)
    assert temperature is not None
    assert (scores / temperature).softmax(1).max() < 0.9
