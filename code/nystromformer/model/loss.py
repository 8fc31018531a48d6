"""Cross-entropy over the vocabulary without ever holding more than its gradient.

Shapes: T positions, E width, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from nystromformer.attention.tracing import once_differentiable

_HELD = 2**23
"""Logits that are held at a time where no gradient is wanted."""
_CHUNK = 2**19
"""Logits that become their gradient at a time on a CPU: they stay in the cache."""
_CHUNK_OF_GPU = 2**25
"""The same on a GPU, where each step of a chunk is a launch."""
_COLUMNS = 2048
"""Of the vocabulary in one product: a CPU's library takes half as long again for all columns of few rows at once."""


def linear_cross_entropy(
    hidden_TE: Tensor, weight_VE: Tensor, bias_V: Tensor, labels_T: Tensor, ignored: int
) -> Tensor:
    """Loss sum, number right and number counted of `softmax(hidden @ weightᵀ + bias)` against labels; (3,) float32.

    Differentiable in the loss sum. The plain way holds the logits, their log-softmax and its gradient; this one turns
    a chunk of logits at a time into their gradient, in place, as soon as they are there. Under autocast products run
    in its precision and the softmax in float32. Labels are int64, `ignored` where a position does not count.
    """
    device = hidden_TE.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden_TE, weight_VE, bias_V = hidden_TE.to(dtype), weight_VE.to(dtype), bias_V.to(dtype)
    with torch.autocast(device, enabled=False):
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden_TE, weight_VE, bias_V))
        sums: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            hidden_TE, weight_VE, bias_V, labels_T, ignored, wanted
        )
    return sums


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, ignored: int, wanted: bool
    ) -> Tensor:
        T, V = len(hidden), len(weight)
        counted = labels != ignored
        target = torch.where(counted, labels, 0)[:, None]
        lift = _lift(hidden.dtype)
        loss = hidden.new_zeros((), dtype=torch.float32)
        right = torch.zeros((), dtype=torch.int64, device=hidden.device)
        # With gradients the logits of all positions take the place that their gradient will have.
        held = max(1, T if wanted else _HELD // V)
        buffer = hidden.new_empty(min(held, T), V)
        rows = max(1, (_CHUNK if hidden.device.type == "cpu" else _CHUNK_OF_GPU) // V)
        for begin in range(0, T, held):
            logits = _product(hidden[begin : begin + held], weight, buffer)
            for first in range(begin, min(begin + held, T), rows):
                part = slice(first, min(first + rows, begin + held, T))
                place = logits[part.start - begin : part.stop - begin]
                z = place.float().add_(bias)
                top, best = z.max(-1, keepdim=True)
                at_target = z.gather(-1, target[part])
                z.sub_(top).exp_()
                total = z.sum(-1, keepdim=True)
                keep = counted[part, None]
                loss += torch.where(keep, total.log() + top - at_target, 0.0).sum()
                right += ((best == target[part]) & keep).sum()
                if wanted:
                    z.mul_(keep * lift / total).scatter_add_(-1, target[part], keep * -lift)
                    if z.dtype != place.dtype:
                        place.copy_(z)
        if wanted:
            ctx.save_for_backward(hidden, weight, buffer)
        return torch.stack([loss, right.float(), counted.sum().float()])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, grad_TV = ctx.saved_tensors
        scale = grad_sums[0] / _lift(grad_TV.dtype)  # float32: in half precision it would lose digits itself
        of_hidden, of_weight, of_bias, *_ = ctx.needs_input_grad
        with torch.autocast(grad_TV.device.type, enabled=False):
            return (
                (grad_TV @ weight).mul_(scale) if of_hidden else None,
                grad_TV.T @ (hidden * scale) if of_weight else None,
                # A frequent token's sum passes float16's largest number before it is scaled.
                (grad_TV.sum(0, dtype=torch.float32) * scale).to(grad_TV.dtype) if of_bias else None,
                None,
                None,
                None,
            )


def _product(hidden_TE: Tensor, weight_VE: Tensor, buffer: Tensor) -> Tensor:
    """hidden @ weightᵀ in the first rows of the buffer, (T, V)."""
    out_TV = buffer[: len(hidden_TE)]
    columns = _COLUMNS if out_TV.device.type == "cpu" else len(weight_VE)
    for first in range(0, len(weight_VE), columns):
        part = slice(first, first + columns)
        torch.mm(hidden_TE, weight_VE[part].T, out=out_TV[:, part])
    return out_TV


def _lift(dtype: torch.dtype) -> float:
    """The gradient of a logit is a probability, of which float16 would lose the small ones without a factor."""
    return 1024.0 if dtype == torch.float16 else 1.0
