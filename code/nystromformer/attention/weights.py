"""Weights of chosen tokens: some rows or columns of a method's attention matrix, which is never formed.

Whatever the method, its output is A V with an A that depends on Q and K alone, and what learned values add. So a row
of A is the gradient of one token's output with respect to V, and a column is the output for a V that is one at a single
token: each channel of the head carries one token's. That takes the method's own time and memory.

Shapes: B batch, H heads, N tokens, D head dim, Q and K chosen queries and keys.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")
Mix = Callable[[Tensor], Tensor]
"""From V, (B, H, N, D), to A V."""


def without_graph(method: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """A method that records no graph for its caller, but may for itself, in inference mode, too."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **kwargs)

    return call


def chosen(tokens: Sequence[int], name: str, length: int) -> list[int]:
    """The tokens as positions.

    Raises:
        ValueError: none, or one that the input does not have.
    """
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < length:
            raise ValueError(f"{name}: expected positions of tokens from 0 to {length - 1}, found {token!r}")
    if not tokens:
        raise ValueError(f"{name}: expected at least one position of a token, found none")
    return list(tokens)


def rows_of(mix: Mix, v_like: Tensor, queries: list[int]) -> Tensor:
    """Rows of A, (B, H, Q, N).

    Args:
        mix: the method.
        v_like: of the shape, dtype and device that V is to have.
    """
    with torch.enable_grad():
        v = torch.zeros_like(v_like).requires_grad_()
        out = mix(v)
    D = v.shape[3]
    parts = []
    for first in range(0, len(queries), D):
        part = queries[first : first + D]
        upstream = torch.zeros_like(out)
        upstream[:, :, part, range(len(part))] = 1
        last = first + D >= len(queries)
        (gradient,) = torch.autograd.grad(out, v, upstream, retain_graph=not last)
        parts.append(gradient[..., : len(part)])
    return torch.cat(parts, dim=3).mT


def mean_row_of(mix: Mix, v_like: Tensor, share_BN: Tensor) -> Tensor:
    """The mean of A's rows, (B, H, N).

    Args:
        mix, v_like: as of `rows_of`.
        share_BN: what each row counts.
    """
    with torch.enable_grad():
        v = torch.zeros_like(v_like).requires_grad_()
        out = mix(v)
    upstream = torch.zeros_like(out)
    upstream[..., 0] = share_BN[:, None].to(out.dtype)
    (gradient,) = torch.autograd.grad(out, v, upstream)
    return gradient[..., 0]


def columns_of(mix: Mix, v_like: Tensor, keys: list[int]) -> Tensor:
    """Columns of A, (B, H, N, K); arguments as of `rows_of`."""
    D = v_like.shape[3]
    # What is there without any token's value is of learned ones.
    of_none = mix(torch.zeros_like(v_like))
    parts = []
    for first in range(0, len(keys), D):
        part = keys[first : first + D]
        v = torch.zeros_like(v_like)
        v[:, :, part, range(len(part))] = 1
        parts.append((mix(v) - of_none)[..., : len(part)])
    return torch.cat(parts, dim=3)
