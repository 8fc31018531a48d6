"""The fused loss against PyTorch's own, in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nystromformer.benchmark.timing import peak_memory
from nystromformer.model import loss as loss_module
from nystromformer.model.loss import linear_cross_entropy

IGNORED = -100


def problem(positions: int, width: int, vocabulary: int, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((positions, width), (vocabulary, width), (vocabulary,))
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    labels = torch.randint(vocabulary, (positions,), generator=generator)
    labels[torch.rand(positions, generator=generator) < 0.3] = IGNORED
    return inputs, labels


def oracle(inputs: list[Tensor], labels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Sums and the gradients of 3 times the loss sum, in float64."""
    double = [x.detach().double().requires_grad_() for x in inputs]
    logits = F.linear(*double)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    right = (logits.argmax(-1) == labels).sum()
    grads = torch.autograd.grad(3 * loss, double)
    return torch.stack([loss.detach(), right.double(), (labels != IGNORED).sum().double()]), list(grads)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 30), st.integers(1, 200), st.integers(0, 99))
def test_sums_and_gradients(positions: int, width: int, vocabulary: int, chunk: int, seed: int) -> None:
    inputs, labels = problem(positions, width, vocabulary, seed)
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("_CHUNK", chunk), ("_HELD", 2 * chunk), ("_COLUMNS", 1 + chunk % 7)):
            patch.setattr(loss_module, name, size)
        sums = linear_cross_entropy(*inputs, labels, IGNORED)
        with torch.no_grad():
            torch.testing.assert_close(linear_cross_entropy(*inputs, labels, IGNORED), sums, rtol=1e-5, atol=1e-5)
    expected, gradients = oracle(inputs, labels)
    torch.testing.assert_close(sums.double(), expected, rtol=1e-5, atol=1e-5)
    for gradient, wanted in zip(torch.autograd.grad(3 * sums[0], inputs), gradients, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_under_autocast(dtype: torch.dtype, tolerance: float) -> None:
    inputs, labels = problem(60, 16, 5000)
    with torch.autocast("cpu", dtype=dtype):
        sums = linear_cross_entropy(*inputs, labels, IGNORED)
    assert sums.dtype == torch.float32
    expected, gradients = oracle(inputs, labels)
    assert sums[0].item() == pytest.approx(expected[0].item(), rel=tolerance)
    for gradient, wanted in zip(torch.autograd.grad(3 * sums[0], inputs), gradients, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - wanted).norm() < 2 * tolerance * wanted.norm()


def test_float16_keeps_the_small_probabilities() -> None:
    """A uniform guess over RoBERTa's vocabulary: 2e-5 each, where float16 has three digits left at most."""
    vocabulary = 50265
    hidden = torch.zeros(1, 4, requires_grad=True)
    weight, bias = torch.zeros(vocabulary, 4, requires_grad=True), torch.zeros(vocabulary, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        sums = linear_cross_entropy(hidden, weight, bias, torch.tensor([7]), IGNORED)
    # As under a loss scale, without which the sum itself would be too small for float16.
    (gradient,) = torch.autograd.grad(2.0**10 * sums[0], (bias,))
    torch.testing.assert_close(gradient[100] / 2**10, torch.tensor(1 / vocabulary), rtol=1e-3, atol=0)


def test_float16_stays_finite_where_one_token_is_frequent() -> None:
    """A hundred times the gradient of one probability, lifted above float16's small numbers, is more than it holds."""
    inputs, _ = problem(400, 8, 50)
    labels = torch.full((400,), 7)
    with torch.autocast("cpu", dtype=torch.float16):
        sums = linear_cross_entropy(*inputs, labels, IGNORED)
    expected = oracle(inputs, labels)[1]
    for gradient, wanted in zip(torch.autograd.grad(3 * sums[0], inputs), expected, strict=True):
        assert (gradient - wanted).norm() < 1e-2 * wanted.norm()


def test_without_gradients_the_logits_of_a_part_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, labels = problem(1000, 8, 500)
    monkeypatch.setattr(loss_module, "_HELD", 10_000)

    def work() -> None:
        with torch.no_grad():
            linear_cross_entropy(*inputs, labels, IGNORED)

    assert peak_memory(work) < 1000 * 500 * 4 / 2**20 / 5
    assert peak_memory(lambda: linear_cross_entropy(*inputs, labels, IGNORED)) > 1000 * 500 * 4 / 2**20


def test_no_position_counts() -> None:
    inputs, _ = problem(5, 4, 6)
    sums = linear_cross_entropy(*inputs, torch.full((5,), IGNORED), IGNORED)
    assert sums.tolist() == [0, 0, 0]
    assert all(not g.any() for g in torch.autograd.grad(sums[0], inputs))
