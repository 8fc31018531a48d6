"""Reversible residual layers: the backward pass computes each layer's input from its output instead of storing it.

Gomez et al., "The Reversible Residual Network", 2017; Kitaev et al., "Reformer", 2020, section 3:
y₁ = x₁ + Attention(x₂), y₂ = x₂ + FeedForward(y₁), both with their layer norm inside.

Shapes: B batch, N tokens, K of their positions, E width.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.attention.decisions import recorded, repeated
from nystromformer.attention.tracing import has_own_weights, is_plain, once_differentiable
from nystromformer.model.layers import Layer, at_positions
from nystromformer.model.rotary import Rotation


def run_reversibly(
    layers: Sequence[Layer],
    x_BNE: Tensor,
    mask: AttentionMask | None,
    positions_BK: Tensor | None,
    rotations: Sequence[Rotation | None],
) -> Tensor:
    """(B, N, E), or (B, K, E) at the given positions: the mean of what comes out of both streams, into which x goes.

    The last layer is computed as any other: it may then be at some positions only, and what it keeps is no more than
    what the backward pass holds of each of the others when their turn comes.
    """
    # The sums of 16 bits could not be undone.
    x_BNE = x_BNE.to(torch.promote_types(x_BNE.dtype, torch.float32))
    *stack, last = layers
    x1, x2 = x_BNE, x_BNE
    can_save = stack and torch.is_grad_enabled() and not is_plain()
    if can_save and has_own_weights(modules := nn.ModuleList(stack)):
        parameters = [p for p in modules.parameters() if p.requires_grad]
        x1, x2 = _Stack.apply(x_BNE, stack, mask, rotations, *parameters)  # type: ignore[no-untyped-call]
    else:
        for layer, rotation in zip(stack, rotations[:-1], strict=True):
            x1 = layer.attended(x2, mask, residual=x1, rotation=rotation)
            x2 = layer.fed_forward(x1, residual=x2)
    y1 = last.attended(x2, mask, positions_BK, at_positions(x1, positions_BK), rotations[-1])
    y2 = last.fed_forward(y1, residual=at_positions(x2, positions_BK))
    return (y1 + y2) / 2


class _Stack(torch.autograd.Function):
    """All layers but the last, by which x goes into both streams."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        layers: Sequence[Layer],
        mask: AttentionMask | None,
        rotations: Sequence[Rotation | None],
        *parameters: Tensor,
    ) -> Any:
        ctx.parameters = parameters
        ctx.branches = [
            (partial(layer.attended, mask=mask, rotation=rotation), layer.fed_forward, layer)
            for layer, rotation in zip(layers, rotations[: len(layers)], strict=True)
        ]
        kind = x.device.type
        # What is cast without gradients must not be found again where gradients are asked for.
        settings = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        ctx.autocast = partial(torch.autocast, *settings, cache_enabled=False)
        ctx.states = []  # of each branch: what it must find again to compute the same once more
        y1, y2 = x, x
        with ctx.autocast():
            for attended, fed_forward, layer in ctx.branches:
                generators = _generators(layer, x.device)
                with recorded() as decisions:
                    y1 = y1 + attended(y2)
                ctx.states += [(generators, decisions), (_generators(layer, x.device), [])]
                y2 = y2 + fed_forward(y1)
        ctx.save_for_backward(y1, y2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y1: Tensor, of_y2: Tensor) -> tuple[Any, ...]:
        y1, y2 = ctx.saved_tensors
        gradients: dict[Tensor, Tensor] = {}
        states = list(ctx.states)

        def again(
            branch: Callable[[Tensor], Tensor], layer: Layer, x: Tensor, upstream: Tensor
        ) -> tuple[Tensor, Tensor]:
            """What a branch gave, computed once more, and the gradient of its input."""
            own = [p for p in layer.parameters() if p.requires_grad]
            x = x.detach().requires_grad_()
            with torch.enable_grad(), ctx.autocast(), _replayed(states.pop(), x.device):
                out = branch(x)
            of_x, *of_own = torch.autograd.grad(out, [x, *own], upstream.to(out.dtype), allow_unused=True)
            for parameter, gradient in zip(own, of_own, strict=True):
                if gradient is not None:
                    known = gradients.get(parameter)
                    gradients[parameter] = gradient if known is None else known + gradient
            return out.detach(), of_x

        for attended, fed_forward, layer in reversed(ctx.branches):
            branch, of_input = again(fed_forward, layer, y1, of_y2)
            y2, of_y1 = y2 - branch, of_y1 + of_input
            branch, of_input = again(attended, layer, y2, of_y1)
            y1, of_y2 = y1 - branch, of_y2 + of_input
        return (of_y1 + of_y2, None, None, None, *(gradients.get(p) for p in ctx.parameters))


def _generators(layer: Layer, device: torch.device) -> list[Tensor]:
    """States of the generators, where a layer draws from them."""
    if not layer.training:
        return []
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


@contextmanager
def _replayed(state: tuple[list[Tensor], list[Tensor]], device: torch.device) -> Iterator[None]:
    generators, decisions = state
    with repeated(decisions), torch.random.fork_rng([device] if device.type == "cuda" else []):
        if generators:
            torch.set_rng_state(generators[0])
        if len(generators) > 1:
            torch.cuda.set_rng_state(generators[1], device)
        yield
