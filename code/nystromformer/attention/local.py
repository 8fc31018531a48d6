"""Local attention: softmax within blocks of tokens and the blocks beside them.

The Long Range Arena's "local attention" (Tay et al. 2021) is that of the own block alone.
"""

import torch
from torch import Tensor

from nystromformer.attention.blocks import attend_to_neighbours
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.methods import LocalConfig


class LocalAttention(RowsAttention):
    """softmax(QKᵀ/√D) V over a token's own block and its neighbours: time and memory O(N · block size).

    A row of at most `block_size` · (`neighbours` + 1) valid tokens gets exact softmax attention.
    """

    config: LocalConfig

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        size, around = self.config.block_size, self.config.neighbours
        # A graph may serve other lengths than the one that it is made with.
        if not (is_exporting() or torch.compiler.is_compiling()):
            around = min(around, (q.shape[2] - 1) // size)
        return attend_to_neighbours(q, k, v, lengths_B, size, around)
