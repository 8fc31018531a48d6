"""Dropout with its sum, against what it means."""

import pytest
import torch

from nystromformer.model.dropout import Dropout


def dropped(p: float, x: torch.Tensor, residual: torch.Tensor | None = None, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    out: torch.Tensor = Dropout(p).train()(x, residual)
    return out


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_entries_are_lost_with_the_probability_and_the_rest_keeps_the_mean(p: float) -> None:
    out = dropped(p, torch.ones(1000, 1003))
    lost = (out == 0).double().mean().item()
    # Six standard deviations.
    assert abs(lost - p) < 6 * (p * (1 - p) / out.numel()) ** 0.5 + 2**-17
    values = out[out != 0].unique()
    assert len(values) == 1
    assert values.item() == pytest.approx(1 / (1 - p), rel=1e-4)


def test_neighbours_are_independent() -> None:
    """Four entries share one random word."""
    keep = (dropped(0.5, torch.ones(250_000, 4)) != 0).double() - 0.5
    correlation = keep.T @ keep / len(keep) * 4
    assert (correlation - torch.eye(4)).abs().max() < 6 / len(keep) ** 0.5


def test_the_sum_and_its_gradients() -> None:
    x, residual = (torch.randn(20, 30, requires_grad=True) for _ in range(2))
    out = dropped(0.3, x, residual)
    mask = dropped(0.3, torch.ones(20, 30))
    torch.testing.assert_close(out, residual + x * mask)
    upstream = torch.randn(20, 30)
    of_x, of_residual = torch.autograd.grad(out, (x, residual), upstream)
    torch.testing.assert_close(of_x, upstream * mask)
    assert torch.equal(of_residual, upstream)


def test_a_seed_fixes_the_mask() -> None:
    x = torch.ones(100)
    assert torch.equal(dropped(0.5, x), dropped(0.5, x))
    assert not torch.equal(dropped(0.5, x), dropped(0.5, x, seed=1))


def test_outside_training_and_without_probability_nothing_is_lost() -> None:
    x, residual = torch.randn(2, 5, 7)
    assert torch.equal(Dropout(0.5).eval()(x, residual), residual + x)
    assert torch.equal(Dropout(0.0).train()(x), x)


def test_a_half_precision_branch_on_a_float32_stream() -> None:
    x, residual = torch.randn(5, 7).bfloat16().requires_grad_(), torch.randn(5, 7)
    out = dropped(0.5, x, residual)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


def test_compiled_it_is_still_dropout() -> None:
    compiled = torch.compile(Dropout(0.5).train(), backend="aot_eager", fullgraph=True)
    out = compiled(torch.ones(1000), torch.ones(1000))
    assert set(out.tolist()) == {1.0, 3.0}
