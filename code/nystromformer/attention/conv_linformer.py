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
from nystromformer.attention.bias import infinite_bias
from nystromformer.attention.rows import RowsAttention, valid
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.conv_linformer import ConvLinformerConfig


class ConvLinformerAttention(RowsAttention):
    """softmax(Q K̃ᵀ/√D) Ṽ, where each of K̃ and Ṽ is a weighted sum of S tokens that follow each other: O(N²/S).

    The weights are learned for each head, channel and place within the piece. A row's last piece may have fewer tokens;
    it is the sum of those.

    Args:
        config, num_heads, head_dim: as for every attention.
    """

    config: ConvLinformerConfig

    def __init__(self, config: ConvLinformerConfig, num_heads: int, head_dim: int) -> None:
        super().__init__(config, num_heads, head_dim)
        self.stride = stride = config.stride
        self.key_weight_HSD, self.value_weight_HSD = (
            # As torch initialises a depthwise convolution.
            nn.Parameter(torch.empty(num_heads, stride, head_dim).uniform_(-(stride**-0.5), stride**-0.5))
            for _ in range(2)
        )

    @property
    def holds(self) -> Holds:
        return replace(super().holds, weights=False)

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        pieces = (q.shape[2] + self.stride - 1) // self.stride
        if is_exporting():
            # One program serves every length where there is always a piece beside the first.
            pieces += 1
            lengths_B = (
                torch.full_like(q[:, 0, 0, 0], q.shape[2], dtype=torch.int64) if lengths_B is None else lengths_B
            )
        keys_BHCD, values_BHCD = (
            self._summed(x, weight, pieces) for x, weight in ((k, self.key_weight_HSD), (v, self.value_weight_HSD))
        )
        bias = None
        if lengths_B is not None:
            # A row without a token gets its first piece of zeros, since a softmax over nothing is no number.
            there_B = ((lengths_B + self.stride - 1) // self.stride).clamp_min(1)
            there_BC = valid(there_B, pieces)
            assert there_BC is not None
            bias = infinite_bias(there_BC, q.dtype)[:, None, None]
        return F.scaled_dot_product_attention(q, keys_BHCD, values_BHCD, attn_mask=bias)

    def _summed(self, x_BHND: Tensor, weight_HSD: Tensor, pieces: int) -> Tensor:
        B, H, N, D = x_BHND.shape
        weight_H1SD = weight_HSD[:, None].to(x_BHND.dtype)
        if is_exporting():  # a view of pieces would hold for lengths alone that they divide
            places_CS = torch.arange(pieces, device=x_BHND.device)[:, None] * self.stride
            places_CS = places_CS + torch.arange(self.stride, device=x_BHND.device)
            inside_CS1 = (places_CS < N)[..., None].to(x_BHND.dtype)
            return (x_BHND[:, :, places_CS.clamp(max=N - 1)] * inside_CS1 * weight_H1SD).sum(3)
        x = F.pad(x_BHND, (0, 0, 0, pieces * self.stride - N))
        return (x.reshape(B, H, pieces, self.stride, D) * weight_H1SD).sum(3)
