"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020): learned projections of the length.

Shapes: B batch, H heads, G heads with a projection of their own (H or 1), N tokens, L the longest input, K projected
length, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Needs
from nystromformer.attention.rows import LearnedRowsAttention
from nystromformer.attention.tracing import first_places
from nystromformer.config.attention.methods import LinformerConfig


class LinformerAttention(LearnedRowsAttention):
    """softmax(Q (E K)ᵀ/√D) (F V) with learned E and F of K x N (their eq. 7): time O(N K), memory O(N).

    A row's n-th valid token is projected by the n-th columns of E and F. They are of each head, of a layer, or of all
    heads of all layers (`sharing`), which the encoder then hands on by `share`.
    """

    config: LinformerConfig
    needs = Needs(max_length=True, layer_sharing=True)

    def __init__(self, config: LinformerConfig, num_heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(config, num_heads, head_dim, max_length)
        shape = (num_heads if config.sharing == "head" else 1, config.projected_length, max_length)
        # So that what is projected from the longest input is as large as a token.
        self.key_projection_GKL = nn.Parameter(torch.randn(shape) / max_length**0.5)
        self.value_projection_GKL = nn.Parameter(torch.randn(shape) / max_length**0.5)

    def share(self, first: "LinformerAttention") -> None:
        """Take another layer's projections for this one's, where they are of all layers."""
        if self.config.sharing == "model":
            self.key_projection_GKL = first.key_projection_GKL
            self.value_projection_GKL = first.value_projection_GKL

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        # Tokens that do not count are zero, and add nothing to a sum.
        keys_BHKD = _projected(self.key_projection_GKL, k)
        return F.scaled_dot_product_attention(q, keys_BHKD, _projected(self.value_projection_GKL, v))


def _projected(projection_GKL: Tensor, x_BHND: Tensor) -> Tensor:
    B, _, N, D = x_BHND.shape
    projection_GKN = first_places(projection_GKL, 2, N).to(x_BHND.dtype)
    # The batch beside the channels: a product over batch and heads would copy the projections for each row.
    out_HKBD = (projection_GKN @ x_BHND.permute(1, 2, 0, 3).flatten(2)).unflatten(2, (B, D))
    return out_HKBD.permute(2, 0, 1, 3)
