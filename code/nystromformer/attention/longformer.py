"""Longformer's attention (Beltagy et al., "Longformer: The Long-Document Transformer", 2020).

Shapes: B batch, H heads, N tokens, G slots for global tokens, D head dim.
"""

from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Holds
from nystromformer.attention.blocks import Extra, attend_to_neighbours
from nystromformer.attention.global_tokens import GlobalTokens, attend_from_global
from nystromformer.attention.rows import GlobalRowsAttention
from nystromformer.config.attention.longformer import LongformerConfig

_LEAST_BLOCK = 16
_LARGEST_REACH = 128
"""Up to it a block is as large as half a window, beyond half as large: less is computed for nothing, more is copied."""


class LongformerAttention(GlobalRowsAttention):
    """Softmax over a sliding window and the global tokens (their section 3.1): time and memory O(N · window).

    A token attends to itself, to `window` / 2 tokens on either side and, in the same softmax, to the global tokens of
    its row, which attend to all of its tokens. Windows and their gaps are counted among a row's valid tokens.

    The paper gives the global tokens' own attention other projections of the layer's input. Here, where that input is
    not seen, maps of each head's queries and values stand in their place: I + Δ with a learned Δ, zero at first, so
    that it starts from shared projections, as the paper's does from copies. A map of keys would add nothing to them,
    since (q A)(k B)ᵀ = (q A Bᵀ) kᵀ. The paper's projections could also see what a token's query, key and value do not
    hold of it; these cannot.

    Args:
        config, num_heads, head_dim: as for every attention.
    """

    config: LongformerConfig

    def __init__(self, config: LongformerConfig, num_heads: int, head_dim: int) -> None:
        super().__init__(config, num_heads, head_dim)
        steps = [config.dilation] * num_heads if isinstance(config.dilation, int) else config.dilation
        self._runs = [(step, len(list(heads))) for step, heads in groupby(steps)]
        changes = nn.Parameter(torch.zeros(2, num_heads, head_dim, head_dim)) if config.global_projections else None
        self.global_changes_2HDD = changes

    @property
    def holds(self) -> Holds:
        return replace(super().holds, weights=not self.config.global_projections)

    def attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        if tokens is None:
            out = self._in_windows(q, k, v, lengths_B, None)
            if self.global_changes_2HDD is None or not self.training:
                return out
            # Weights without a use have a gradient of zero, as optimizers and several processes expect.
            return out + 0.0 * self.global_changes_2HDD.sum().to(out.dtype)
        extra = Extra(tokens.taken(k), tokens.taken(v), tokens.there_BG, tokens.is_global_BN)
        out = self._in_windows(q, k, v, lengths_B, extra)
        q_BHGD = tokens.taken(q)
        if self.global_changes_2HDD is None:
            return tokens.placed(attend_from_global(q_BHGD, k, v, lengths_B), out)
        queries_HDD, values_HDD = self.global_changes_2HDD.to(q.dtype)
        # The values' map comes after their mean: to the few global tokens, not to all.
        own = attend_from_global(q_BHGD + q_BHGD @ queries_HDD, k, v, lengths_B)
        return tokens.placed(own + own @ values_HDD, out)

    def _in_windows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, extra: Extra | None) -> Tensor:
        if len(self._runs) == 1:
            return self._sliding(q, k, v, lengths_B, extra, self._runs[0][0])
        parts, first = [], 0
        for step, count in self._runs:
            own = None
            if extra is not None:
                own = extra._replace(
                    k_BHGD=extra.k_BHGD.narrow(1, first, count), v_BHGD=extra.v_BHGD.narrow(1, first, count)
                )
            qs, ks, vs = (x.narrow(1, first, count) for x in (q, k, v))
            parts.append(self._sliding(qs, ks, vs, lengths_B, own, step).transpose(1, 2).flatten(2))
            first += count
        return torch.cat(parts, 2).unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _sliding(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, extra: Extra | None, step: int
    ) -> Tensor:
        """Windows of heads of one dilation."""
        reach = self.config.window // 2
        around = 1 if reach <= _LARGEST_REACH else 2
        size = max(-(-reach // around), _LEAST_BLOCK)
        if not torch.compiler.is_compiling() and (2 * around + 1) * size >= -(-q.shape[2] // step):
            # A short row is one block; a graph for many lengths is better off with a size that is none of them.
            size, around = -(-q.shape[2] // step), 0
        return attend_to_neighbours(q, k, v, lengths_B, size, around, reach, extra, step)
