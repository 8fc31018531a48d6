"""The required attention span (Tay et al. 2021, Long Range Arena): the mean distance between a token and those that it
attends to.

Shapes: B rows, H heads, N tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import Attention, AttentionMask, NystromAttention, create_attention
from nystromformer.benchmark.models import watch_attention
from nystromformer.model import Encoder


@dataclass(frozen=True)
class RowSpan:
    """Of one row in one layer, means over heads and queries, in tokens."""

    layer: int
    tokens: int
    """Valid ones of the row."""
    span: float
    """With the weights' absolute values, each query's divided by their sum."""
    negative: float
    """The share of these absolute values that negative weights have."""
    softmax: float
    """The span of exact softmax with the same queries and keys."""

    @property
    def even(self) -> float:
        """The span where each token attends to all of the row alike."""
        return (self.tokens**2 - 1) / (3 * self.tokens)


def span(weights_HNN: Tensor) -> float:
    """Mean over heads and queries of Σ |w| · distance / Σ |w|."""
    size = weights_HNN.abs()
    places = torch.arange(size.shape[-1], device=size.device)
    distance = (places[:, None] - places).abs().to(size.dtype)
    return float(((size * distance).sum(-1) / size.sum(-1).clamp(min=torch.finfo(size.dtype).tiny)).mean())


def spans_of_rows(core: Attention, q: Tensor, k: Tensor, mask: AttentionMask | None, layer: int) -> Iterator[RowSpan]:
    """Of each row of a batch, q and k (B, H, N, D), by its valid tokens alone.

    Raises:
        ValueError: a method that has no weights.
    """
    softmax = create_attention("softmax", num_heads=q.shape[1], head_dim=q.shape[3])
    for row in range(len(q)):
        keep_N = None if mask is None else mask.keep_BN[row]
        marks = None if mask is None or mask.global_BN is None else mask.global_BN[row : row + 1]
        own_q, own_k = (x[row : row + 1] if keep_N is None else x[row : row + 1, :, keep_N] for x in (q, k))
        count = own_q.shape[2]
        if not count:
            continue
        own_mask = None
        if marks is not None and keep_N is not None:
            own_mask = AttentionMask(torch.ones_like(keep_N[keep_N])[None], marks[:, keep_N])
        if core.needs.shared_query_key:
            own_k = own_q
        weights = _weights(core, own_q, own_k, own_mask)[0]
        exact = softmax.weights(own_q, own_k, None, queries=range(count))[0]
        negative = float(-weights.clamp(max=0).sum() / weights.abs().sum())
        yield RowSpan(layer, count, span(weights), negative, span(exact))


def _weights(core: Attention, q: Tensor, k: Tensor, mask: AttentionMask | None) -> Tensor:
    """All of a row's weights, (1, H, N, N)."""
    if isinstance(core, NystromAttention) and mask is None:
        with torch.no_grad():
            factors = core.factors(q, k)
            return factors.queries_BHNM @ factors.inverse_BHMM @ factors.keys_BHMN
    return core.weights(q, k, mask, queries=range(q.shape[2]))


@contextmanager
def watch_spans(encoder: Encoder) -> Iterator[list[RowSpan]]:
    """Collects the spans of all that an encoder attends to while the context lasts."""
    found: list[RowSpan] = []

    def see(layer: int, core: Attention, arguments: tuple[Any, ...]) -> None:
        q, k, _, mask = arguments
        found.extend(spans_of_rows(core, q.detach().float(), k.detach().float(), mask, layer))

    with watch_attention(encoder, see):
        yield found
