"""The softmax over several kinds of keys, by PyTorch's CPU kernel in parts and as graphs and GPUs compute it."""

from typing import Any

import pytest
import torch
from attention_cases import DIM, HEADS, qkv
from torch import Tensor

from nystromformer.attention import parts
from nystromformer.attention.parts import Keys
from nystromformer.attention.scores import finite_bias

SIZE, AROUND, BLOCKS = 4, 1, 6
LENGTH = SIZE * BLOCKS - 1


def inputs(dtype: torch.dtype, seed: int) -> tuple[list[Tensor], Tensor, Keys, Keys]:
    """Queries, keys and values; the bias of the blocks around, which leaves the last two blocks without any; others."""
    generator, wide = torch.Generator().manual_seed(seed), torch.promote_types(dtype, torch.float32)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    def there(*shape: int) -> Tensor:
        first = torch.arange(shape[-1]) == 0  # a softmax over nothing has no meaning
        return finite_bias(
            (torch.rand(shape, generator=generator) < 0.6) | first, torch.promote_types(dtype, torch.float32)
        )

    shared = Keys(drawn(2, HEADS, 5, DIM), drawn(2, HEADS, 5, DIM), there(2, HEADS, BLOCKS, 5))
    own = Keys(drawn(2, HEADS, BLOCKS, 3, DIM), drawn(2, HEADS, BLOCKS, 3, DIM), there(2, HEADS, BLOCKS, 3))
    around = torch.rand(2, 1, BLOCKS, 1, 3 * SIZE, generator=generator) < 0.6
    around[..., SIZE] = True
    around[:, :, -2:] = False
    return qkv(2, LENGTH, seed, dtype), finite_bias(around, wide), shared, own


def computed(by: Any, x: list[Tensor], bias: Tensor, *others: Keys | None) -> tuple[Tensor, tuple[Tensor, ...]]:
    out = by(*x, bias, SIZE, AROUND, *others)
    learned = [*x, *(each for part in others if part is not None for each in part[:2])]
    return out, torch.autograd.grad(out.float().square().sum(), learned, materialize_grads=True)


@pytest.mark.parametrize("has_shared", [False, True], ids=["", "shared"])
@pytest.mark.parametrize("has_own", [False, True], ids=["", "own"])
def test_parts_are_the_softmax_over_all(has_shared: bool, has_own: bool) -> None:
    x, bias, shared, own = inputs(torch.float64, seed=3)
    others = (shared if has_shared else None, own if has_own else None)
    if not (has_shared or has_own):
        bias = bias[:, :, :1].expand_as(bias)
    out, gradients = computed(parts.attend_to_parts, x, bias, *others)
    expected, wanted = computed(parts._by_blocks, x, bias, *others)
    torch.testing.assert_close(out, expected)
    for a, b in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("by", [parts.attend_to_parts, parts._by_blocks])
def test_a_block_without_keys_stays_finite_in_half_precision(by: Any, dtype: torch.dtype) -> None:
    x, bias, *_ = inputs(dtype, seed=4)
    out, gradients = computed(by, x, bias, None, None)
    assert out.dtype == dtype
    assert all(torch.isfinite(each).all() for each in (out, *gradients))
    with torch.autocast("cpu", dtype):
        wide = [each.detach().float().requires_grad_() for each in x]
        out, gradients = computed(by, wide, bias, None, None)
    assert all(torch.isfinite(each).all() for each in (out, *gradients))
