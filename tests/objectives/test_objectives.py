"""Objectives that are no sum over examples: by bounds, and by enumeration.

Shapes: n examples.
"""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, precision_score, recall_score
from small import ROOT
from torch import Tensor

from nystromformer.objectives import (
    Auroc,
    AveragePrecision,
    FBeta,
    Objective,
    PrecisionAtRecall,
    RecallAtPrecision,
    ascend,
)
from nystromformer.objectives.objective import bounds_of

KINDS: dict[str, Callable[[float], Objective]] = {
    "precision at recall": lambda share: PrecisionAtRecall(0.7, share),
    "recall at precision": lambda share: RecallAtPrecision(0.7, share),
    "average precision": AveragePrecision,
    "auroc": Auroc,
    "f beta": lambda share: FBeta(share, 2.0),
}
EXAMPLES = st.lists(st.tuples(st.floats(-4, 4), st.integers(0, 1)), min_size=2, max_size=30).filter(
    lambda rows: 0 < sum(label for _, label in rows) < len(rows)
)


def tensors(rows: list[tuple[float, int]]) -> tuple[Tensor, Tensor, float]:
    logits, labels = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    return logits, labels, float(labels.mean())


@given(EXAMPLES)
def test_bounds_hold_for_the_counts(rows: list[tuple[float, int]]) -> None:
    """tp >= P - L+ and fp <= L-, whatever the logits."""
    logits, labels, share = tensors(rows)
    missed, wrong = (each.mean() for each in bounds_of(logits, labels))
    found = float(((logits > 0) & (labels == 1)).double().mean())
    false = float(((logits > 0) & (labels == 0)).double().mean())
    assert found >= share - float(missed) - 1e-9
    assert false <= float(wrong) + 1e-9


@given(EXAMPLES, st.floats(0.1, 0.9))
def test_a_constraint_that_the_bounds_keep_is_kept(rows: list[tuple[float, int]], target: float) -> None:
    """What a multiplier multiplies is at most 0 only where the counts keep the constraint, too."""
    logits, labels, share = tensors(rows)
    weights, told = torch.ones_like(labels), (logits > 0).long()
    for kind, exact in ((PrecisionAtRecall, recall_score), (RecallAtPrecision, precision_score)):
        objective = kind(target, share).double()
        (broken,) = torch.autograd.grad(objective.loss(logits, labels, weights), objective.dual_parameters())
        if broken <= 0 and told.any():
            assert exact(labels.long(), told, zero_division=1.0) >= target - 1e-9


@given(EXAMPLES)
def test_at_the_saddle_the_loss_and_its_gradient_are_f_betas(rows: list[tuple[float, int]]) -> None:
    logits, labels, share = tensors(rows)
    logits.requires_grad_()
    found, wrong = (logits.sigmoid() * labels).mean(), (logits.sigmoid() * (1 - labels)).mean()
    lower = 4 * labels.mean() + found + wrong
    metric = 5 * found / lower
    objective = FBeta(share, 2.0).double()
    with torch.no_grad():
        objective.log_scale.copy_(-lower.log())
        objective.multiplier.copy_(metric)
    loss = objective.loss(logits, labels, torch.ones_like(labels))
    assert loss.item() == pytest.approx(-metric.item())
    (slope,), (expected,) = (torch.autograd.grad(each, logits, retain_graph=True) for each in (loss, -metric))
    torch.testing.assert_close(slope, expected)
    own = torch.autograd.grad(loss, [objective.log_scale, objective.multiplier])
    torch.testing.assert_close(torch.stack(own), torch.zeros(2).double(), atol=1e-8, rtol=0)
    # Which the ranges allow.
    before = {key: value.clone() for key, value in objective.state_dict().items()}
    objective.project()
    for key, value in objective.state_dict().items():
        torch.testing.assert_close(value, before[key])


@given(EXAMPLES)
def test_the_pairwise_loss_bounds_one_minus_auroc(rows: list[tuple[float, int]]) -> None:
    logits, labels, share = tensors(rows)
    ones, zeros = logits[labels == 1], logits[labels == 0]
    wrong = (ones[:, None] <= zeros[None, :]).double().mean()
    assert Auroc(share).loss(logits, labels, torch.ones_like(labels)) >= wrong - 1e-9


def saddle(objective: Objective, logits: Tensor, labels: Tensor) -> float:
    """The value of the game over the objective's own variables, by gradient steps."""
    primal = torch.optim.SGD(objective.primal_parameters(), lr=0.05)
    values = []
    for _ in range(1500):
        primal.zero_grad()
        loss = objective(logits, labels)
        loss.backward()
        primal.step()
        ascend(objective.dual_parameters(), 0.05)
        values.append(loss.item())
    return float(np.mean(values[500:]))


@pytest.mark.slow
def test_the_game_ends_at_the_exact_metric_of_certain_predictions() -> None:
    """Where probabilities are 0 and 1, soft counts are counts."""
    labels = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 1, 0])
    told = torch.tensor([1, 1, 0, 1, 0, 0, 0, 0, 1, 0])
    logits = 60.0 * (2 * told - 1)
    expected = fbeta_score(labels, told, beta=2)
    assert saddle(FBeta(0.4, 2.0), logits, labels) == pytest.approx(-expected, abs=0.01)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "auroc"])
def test_parts_of_a_batch_add_up_to_it(name: str) -> None:
    """So that micro-batches and processes give the gradients of one batch, whichever labels each has."""
    torch.manual_seed(0)
    logits, labels = torch.randn(12, requires_grad=True), (torch.arange(12) < 4).float()
    objective = KINDS[name](0.3)
    variables = [logits, *objective.parameters()]
    whole = torch.autograd.grad(objective(logits, labels), variables)
    parts = torch.arange(12).split([3, 1, 8])
    losses = [objective(logits[part], labels[part]) * len(part) / 12 for part in parts]
    found = torch.autograd.grad(torch.stack(losses).sum(), variables)
    for one, other in zip(found, whole, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_batch_of_one_class_has_a_finite_loss_and_gradient(name: str, label: float) -> None:
    logits = torch.randn(6, requires_grad=True)
    objective = KINDS[name](0.02)
    loss = objective(logits, torch.full((6,), label))
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert all(each.grad is None or each.grad.isfinite().all() for each in objective.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_masked_or_weighs_nothing_does_not_count(name: str) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(8), (torch.arange(8) % 2).float()
    objective = KINDS[name](0.5)
    kept = torch.arange(8) < 6
    expected = objective(logits[:6], labels[:6])
    spoilt = torch.where(kept, logits, float("nan"))
    torch.testing.assert_close(objective(spoilt, labels, kept), expected)
    torch.testing.assert_close(objective(logits, labels, weight=kept.float()), expected)
    torch.testing.assert_close(objective(logits, labels, weight=torch.full((8,), 3.0)), objective(logits, labels))


@pytest.mark.parametrize("name", KINDS)
def test_variables_are_kept_and_stay_in_their_ranges(name: str) -> None:
    objective, other = KINDS[name](0.3), KINDS[name](0.3)
    logits, labels = torch.randn(10, requires_grad=True), (torch.arange(10) % 3 == 0).float()
    for _ in range(5):
        objective(logits, labels).backward()
        ascend(objective.dual_parameters(), 100.0)
        with torch.no_grad():
            for parameter in objective.primal_parameters():
                parameter.sub_(100.0)
    other.load_state_dict(objective.state_dict())
    torch.testing.assert_close(other(logits, labels), objective(logits, labels))
    for variable, (low, high) in objective._ranges.items():
        assert ((objective.get_parameter(variable) >= low) & (objective.get_parameter(variable) <= high)).all()
    both = [*objective.dual_parameters(), *objective.primal_parameters()]
    assert {id(each) for each in both} == {id(each) for each in objective.parameters()}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: PrecisionAtRecall(1.0, 0.5), "target between 0 and 1, found 1.0"),
        (lambda: RecallAtPrecision(0.0, 0.5), "target between 0 and 1, found 0.0"),
        (lambda: FBeta(0.5, 0.0), "beta above 0, found 0.0"),
        (lambda: Auroc(0.0), "share of positives between 0 and 1, found 0.0"),
        (lambda: Auroc(0.5)(torch.zeros(3), torch.zeros(2)), "labels of the logits' shape"),
    ],
)
def test_what_is_refused(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        make()


def test_the_example_of_the_page_learns() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "objectives.md").read_text(), re.DOTALL)
    found: dict[str, object] = {}
    exec(code, found)  # the project's own page
    told = (found["model"](found["inputs"])[:, 0] > 0).int()  # type: ignore[operator]
    assert fbeta_score(found["labels"], told, beta=2) > 0.55
