"""Longformer's attention (Beltagy et al., "Longformer: The Long-Document Transformer", 2020)."""

import torch
from torch import Tensor

from nystromformer.attention.blocks import attend_to_neighbours
from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.rows import GlobalRowsAttention, attend_to_all
from nystromformer.config.attention.methods import LongformerConfig

_LEAST_BLOCK = 16
_LARGEST_REACH = 128
"""Up to it a block is as large as half a window, beyond half as large: less is computed for nothing, more is copied."""


class LongformerAttention(GlobalRowsAttention):
    """Softmax over a sliding window and the global tokens (their section 3.1): time and memory O(N · window).

    A token attends to itself, to `window` / 2 tokens on either side and, in the same softmax, to the global tokens of
    its row, which attend to all of its tokens. Windows are counted among a row's valid tokens.

    The paper gives the global tokens' own attention other projections of the layer's input, which is not seen here:
    theirs are those of the other tokens, from which the paper's start as copies.
    """

    config: LongformerConfig

    def attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        reach = self.config.window // 2
        around = 1 if reach <= _LARGEST_REACH else 2
        size = max(-(-reach // around), _LEAST_BLOCK)
        if not torch.compiler.is_compiling() and (2 * around + 1) * size >= q.shape[2]:
            # A short row is one block; a graph for many lengths is better off with a size that is none of them.
            size, around = q.shape[2], 0
        out = attend_to_neighbours(q, k, v, lengths_B, size, around, reach, tokens)
        return out if tokens is None else tokens.placed(attend_to_all(tokens.taken(q), k, v, lengths_B), out)
