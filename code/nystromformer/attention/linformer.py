"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020): learned projections of the length.

Shapes: B batch, H heads, G heads with a projection of their own (H or 1), N tokens, L the longest input, K projected
length, D head dim.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Holds, Needs
from nystromformer.attention.rows import RowsAttention
from nystromformer.attention.tracing import is_exporting
from nystromformer.config.attention.linformer import LinformerConfig


class LinformerAttention(RowsAttention):
    """softmax(Q (E K)ᵀ/√D) (F V) with learned E and F of K x N (their eq. 7): time O(N K), memory O(N).

    A row's n-th valid token is projected by the n-th columns of E and F. Shorter input uses the first of them; input
    beyond `max_length` is refused, because for that nothing was learned.

    E and F are of each head, of a layer, or of all heads of all layers (`sharing`), which the encoder then hands on by
    `share`.

    Args:
        config, num_heads, head_dim: as for every attention.
        max_length: L.
    """

    config: LinformerConfig
    needs = Needs(max_length=True, layer_sharing=True)

    def __init__(self, config: LinformerConfig, num_heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(config, num_heads, head_dim)
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, found {max_length}")
        self.max_length = max_length
        shape = (num_heads if config.sharing == "head" else 1, config.projected_length, max_length)
        self.key_projection_GKL = nn.Parameter(_initial(shape))
        self.value_projection_GKL = None if config.share_keys_and_values else nn.Parameter(_initial(shape))

    @property
    def holds(self) -> Holds:
        return replace(super().holds, any_length=False)

    def share(self, first: "LinformerAttention") -> None:
        """Take another layer's projections for this one's, where they are of all layers."""
        if self.config.sharing == "model":
            self.key_projection_GKL = first.key_projection_GKL
            self.value_projection_GKL = first.value_projection_GKL

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        length = q.shape[2]
        if length > self.max_length:
            raise ValueError(
                f"linformer has learned projections for {self.max_length} tokens (max_length; max_seq_len of a "
                f"model), found {length}: shorten the input, or train with a larger max_length"
            )
        # Tokens that do not count are zero, and add nothing to a sum.
        keys_BHKD = _projected(self.key_projection_GKL, k)
        values = self.key_projection_GKL if self.value_projection_GKL is None else self.value_projection_GKL
        return F.scaled_dot_product_attention(q, keys_BHKD, _projected(values, v))


def _projected(projection_GKL: Tensor, x_BHND: Tensor) -> Tensor:
    B, _, N, D = x_BHND.shape
    if is_exporting():  # a slice would make the exported program depend on whether it is the whole
        projection_GKN = projection_GKL.index_select(2, torch.arange(N, device=x_BHND.device))
    else:
        projection_GKN = projection_GKL[:, :, :N]
    projection_GKN = projection_GKN.to(x_BHND.dtype)
    # The batch beside the channels: a product over batch and heads would copy the projections for each row.
    out_HKBD = (projection_GKN @ x_BHND.permute(1, 2, 0, 3).flatten(2)).unflatten(2, (B, D))
    return out_HKBD.permute(2, 0, 1, 3)


def _initial(shape: tuple[int, int, int]) -> Tensor:
    """So that what is projected from the longest input is as large as a token."""
    return torch.randn(shape) / shape[2] ** 0.5
