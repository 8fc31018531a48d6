"""What traces the computation, so that some of its ways cannot be taken."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


def is_exporting() -> bool:
    """Whether `torch.export` is tracing: then no Python branch may look at the length."""
    return bool(torch.compiler.is_exporting())


def is_plain() -> bool:
    """Whether a graph is traced: then all operations must be PyTorch's own."""
    return torch.compiler.is_compiling() or torch._C._is_tracing()


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


def first_places(x: Tensor, dim: int, count: int) -> Tensor:
    """The first of a dimension of what was learned for a longest input."""
    if is_exporting():  # a slice would make the exported program depend on whether it is the whole
        return x.index_select(dim, torch.arange(count, device=x.device))
    return x.narrow(dim, 0, count)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For the backward pass of an autograd.Function that is not linear: a gradient that is to be differentiated again
    raises. PyTorch's decorator of this name lets some pass, and wrong, as of a loss with a penalty of gradients.
    """

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # it is with create_graph=True
            raise RuntimeError("second derivatives are not computed here: leave out create_graph=True")
        return backward(ctx, *gradients)

    return checked
