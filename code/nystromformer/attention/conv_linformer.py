"""Linformer with a convolution in the place of its projections, which takes any length and does not move with a shift.

The source is a lecture on efficient transformers (Skoltech 2021) that replaces the matrix by a convolution whose kernel
is as long as its stride.

Shapes: B batch, H heads, N tokens, S stride, C pieces of S tokens, D head dim.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Holds
from nystromformer.attention.grid import Grid
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.scores import infinite_bias
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.methods import ConvLinformerConfig


class ConvLinformerAttention(RowsAttention):
    """softmax(Q K̃ᵀ/√D) Ṽ, where each of K̃ and Ṽ is a weighted sum of S tokens that follow each other: O(N²/S).

    The weights are learned for each head, channel and place within the piece. A row's last piece may have fewer tokens;
    it is the sum of those.
    """

    config: ConvLinformerConfig

    def __init__(self, config: ConvLinformerConfig, num_heads: int, head_dim: int) -> None:
        super().__init__(config, num_heads, head_dim)
        stride = config.stride
        self.key_weight_HSD, self.value_weight_HSD = (
            # As torch initialises a depthwise convolution.
            nn.Parameter(torch.empty(num_heads, stride, head_dim).uniform_(-(stride**-0.5), stride**-0.5))
            for _ in range(2)
        )

    @property
    def holds(self) -> Holds:
        return replace(super().holds, weights=False)

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        grid = Grid(k, lengths_B, self.config.stride)
        keys_BHCD, values_BHCD = (
            (grid.of(x) * weight_HSD[:, None].to(x.dtype)).sum(3)
            for x, weight_HSD in ((k, self.key_weight_HSD), (v, self.value_weight_HSD))
        )
        bias = None
        if lengths_B is not None or is_exporting():
            # A row without a token gets its first piece of zeros, since a softmax over nothing is no number.
            there_BC = grid.places()[:, 0] < grid.ends_B.clamp(min=1)[:, None]
            bias = infinite_bias(there_BC, q.dtype)[:, None, None]
        return F.scaled_dot_product_attention(q, keys_BHCD, values_BHCD, attn_mask=bias)
