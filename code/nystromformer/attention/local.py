"""Local attention: softmax within blocks of tokens and the blocks beside them.

The Long Range Arena's "local attention" (Tay et al. 2021) is that of the own block alone.
"""

import torch
from torch import Tensor

from nystromformer.attention.base import is_exporting
from nystromformer.attention.blocks import attend_to_neighbours
from nystromformer.attention.rows import RowsAttention


class LocalAttention(RowsAttention):
    """softmax(QKᵀ/√D) V over a token's own block and its neighbours: time and memory O(N · block size).

    A row of at most `block_size` · (`neighbours` + 1) valid tokens gets exact softmax attention.

    Args:
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        block_size: tokens of a block, counted among a row's valid ones.
        neighbours: blocks on either side that are attended to, too.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        block_size: int = 128,
        neighbours: int = 1,
        conv_kernel_size: int | None = None,
        ignore_mask: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        if block_size < 1 or neighbours < 0:
            raise ValueError(
                f"block_size must be at least 1 and neighbours at least 0, found {block_size} and {neighbours}"
            )
        self.block_size = block_size
        self.neighbours = neighbours

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        around = self.neighbours
        # A graph may serve other lengths than the one that it is made with.
        if not (is_exporting() or torch.compiler.is_compiling()):
            around = min(around, (q.shape[2] - 1) // self.block_size)
        return attend_to_neighbours(q, k, v, lengths_B, self.block_size, around)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, block_size={self.block_size}, neighbours={self.neighbours}"
