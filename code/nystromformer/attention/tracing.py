"""What traces or transforms the computation, so that some of its ways cannot be taken."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def is_exporting() -> bool:
    """Whether `torch.export` is tracing: then no Python branch may look at the length."""
    return bool(torch.compiler.is_exporting())


def is_transforming() -> bool:
    """Whether torch.func takes derivatives or maps over a dimension: it takes no autograd.Function with a context."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def is_plain() -> bool:
    """Whether a graph is traced or torch.func transforms: then all operations must be PyTorch's own."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or is_transforming()


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Within the block, products of the tensor's device are computed in their operands' own precision."""
    # The device meta has no autocast, and raises where it is named.
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def is_under_autocast(x: Tensor) -> bool:
    """Whether products of the tensor's device are computed in fewer bits."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def has_own_weights(module: nn.Module) -> bool:
    """Whether its weights are its own: `torch.func.functional_call` gives it others for one forward pass, and what the
    backward pass computes again would not have them.
    """
    return all(isinstance(each, nn.Parameter) for each in module.parameters())


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For the backward pass of an autograd.Function that is not linear: a second derivative raises. PyTorch's decorator
    of this name lets some pass, and wrong, as of a loss with a penalty of gradients.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Any:
        if not torch.is_grad_enabled():  # it is with create_graph=True
            return backward(ctx, *gradients)
        ctx = _Unpacked(ctx)
        with torch.no_grad():
            found = backward(ctx, *gradients)
        sources = [x for x in (*ctx.saved_tensors, *gradients) if x is not None and x.requires_grad]
        sources = sources or [torch.zeros((), requires_grad=True)]  # where only what follows from the input was saved
        several = found if isinstance(found, tuple) else (found,)
        refusing = tuple(x if x is None else _Refusal.apply(x, *sources) for x in several)
        return refusing if isinstance(found, tuple) else refusing[0]

    return checked


class _Unpacked:
    """The context of a backward pass whose saved tensors are read once: checkpointing gives them no second time."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _Refusal(torch.autograd.Function):
    """A gradient that follows from some tensors in a way that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *sources: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise RuntimeError("second derivatives are not computed here")
