"""Nyström attention beside the same in float64: modules, inputs, masks, outputs with gradients, and errors.

The oracle is the module's own tensor operations, which take lengths that the equations, row by row, would take hours
for; tests compare the two. What is compared imports nothing of this.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import create_attention
from nystromformer.attention.nystrom import NystromAttention

Results = dict[str, Tensor]
"""The output, `out`, and the gradients of `q`, `k`, `v` and, where there is a convolution, of its `filter`."""


def build(seed: int, device: torch.device, **parameters: Any) -> NystromAttention:
    """A module; the seed decides its convolution's weights.

    Args:
        parameters: as `create_attention` takes them.
    """
    # Initial values are drawn from the default generator.
    torch.manual_seed(seed)
    module = create_attention("nystrom", **parameters)
    assert isinstance(module, NystromAttention)
    return module.to(device)


def draw_inputs(
    size_BNHD: tuple[int, int, int, int],
    dtype: torch.dtype,
    generator: torch.Generator,
    alike: int = 1,
    keep_BN: Tensor | None = None,
    masked: float = 0.0,
) -> list[Tensor]:
    """Q, K, V and a gradient of the output, each (B, H, N, D), laid out as projections give them.

    Args:
        alike: so many neighbours have something in common: means over segments of independent tokens would all be near
            zero. 1: they are independent.
        keep_BN: False where tokens are masked.
        masked: what stands at masked tokens.
    """
    rows, length, *rest = size_BNHD
    options: dict[str, Any] = {"generator": generator, "device": generator.device}
    drawn = []
    for _ in range(4):
        common = torch.randn(rows, -(-length // alike), *rest, **options) if alike > 1 else None
        x_BNHD = torch.randn(size_BNHD, **options)
        if common is not None:
            x_BNHD = x_BNHD + common.repeat_interleave(alike, 1)[:, :length]
        if keep_BN is not None:
            x_BNHD.masked_fill_(~keep_BN[:, :, None, None], masked)
        drawn.append(x_BNHD.to(dtype).transpose(1, 2))
    return drawn


MASKS = ("padding behind", "padding in front", "gaps", "fewer tokens than landmarks", "as many", "none")


def masks_of_all_kinds(length: int, num_landmarks: int, generator: torch.Generator) -> Tensor:
    """(6, N), a row for each of `MASKS`; for a length of at least M + 3."""
    keep_BN = torch.ones(len(MASKS), length, dtype=torch.bool, device=generator.device)
    keep_BN[0, length - length // 4 :] = False
    keep_BN[1, : length // 3] = False
    keep_BN[2] = torch.rand(length, generator=generator, device=generator.device) > 0.4
    keep_BN[3, num_landmarks // 2 + 1 :] = False
    keep_BN[4] = False
    keep_BN[4, length - num_landmarks - 3 : length - 3] = True
    keep_BN[5] = False
    return keep_BN


def results(module: NystromAttention, inputs: Sequence[Tensor], keep_BN: Tensor | None = None) -> Results:
    """What a module gives for Q, K, V, and for a gradient of the output."""
    q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
    weight = None if module.skip is None else module.skip.weight
    return with_gradients(module(q, k, v, keep_BN), q, k, v, weight, inputs[3])


def by_tensor_operations(module: NystromAttention, inputs: Sequence[Tensor], keep_BN: Tensor | None = None) -> Results:
    """The same by a copy of a module of tensor operations, in float64."""
    return results(copy.deepcopy(module).double(), [x.detach().double() for x in inputs], keep_BN)


def errors(values: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, float]:
    """‖value − expected‖ / ‖expected‖ of each."""
    return {
        name: float((values[name].to(right.device).double() - right).norm() / right.norm())
        for name, right in expected.items()
    }


def with_gradients(out: Tensor, q: Tensor, k: Tensor, v: Tensor, weight: Tensor | None, upstream: Tensor) -> Results:
    """An output and the gradients of what it was made of."""
    inputs = {"q": q, "k": k, "v": v} | ({} if weight is None else {"filter": weight})
    gradients = torch.autograd.grad(out, list(inputs.values()), upstream.to(out.dtype))
    return {"out": out.detach(), **dict(zip(inputs, gradients, strict=True))}
