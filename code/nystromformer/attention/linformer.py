"""Linformer (Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020): learned projections of the length.

Shapes: B batch, H heads, G heads with a projection of their own (H or 1), N tokens, L the longest input, K projected
length, D head dim.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Holds, Needs, is_exporting
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.rows import RowsAttention

Sharing = Literal["head", "layer", "model"]


_STD_OF_TABLE_3 = 0.02


class LinformerAttention(RowsAttention):
    """softmax(Q (E K)ᵀ/√D) (F V) with learned E and F of K x N (their eq. 7): time O(N K), memory O(N).

    A row's n-th valid token is projected by the n-th columns of E and F. Shorter input uses the first of them; input
    beyond `max_length` is refused, because for that nothing was learned.

    Args:
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        projected_length: K.
        sharing: whose projections are one. "head": each head has its own; "layer": those of a layer's heads; "model":
            those of all heads of all layers, which the encoder then hands on by `share`.
        share_keys_and_values: whether E and F are one.
        as_in_table3: as in the code of the paper's authors: E and F are one; each head has its own, which all layers
            share (`share`); its numbers start with a standard deviation of 0.02; tokens are projected by their position
            in the padded row, so that a hole in the mask leaves its columns unused.
        max_length: L.
    """

    needs = Needs(max_length=True, layer_sharing=True)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        max_length: int,
        projected_length: int = 256,
        sharing: Sharing = "head",
        share_keys_and_values: bool = False,
        conv_kernel_size: int | None = None,
        ignore_mask: bool = False,
        as_in_table3: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        for name, value in (("projected_length", projected_length), ("max_length", max_length)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, found {value}")
        if as_in_table3 and sharing != "head":
            raise ValueError(f'as_in_table3: expected sharing="head" beside it, found "{sharing}"')
        self.max_length = max_length
        self.as_in_table3 = as_in_table3
        self.projected_length = projected_length
        self.sharing = sharing
        self.share_keys_and_values = share_keys_and_values
        shape = (num_heads if sharing == "head" else 1, projected_length, max_length)
        self.key_projection_GKL = nn.Parameter(_initial(shape))
        shared = share_keys_and_values or as_in_table3
        self.value_projection_GKL = None if shared else nn.Parameter(_initial(shape))
        if as_in_table3:
            nn.init.normal_(self.key_projection_GKL, std=_STD_OF_TABLE_3)

    @property
    def holds(self) -> Holds:
        return replace(super().holds, any_length=False)

    def share(self, first: "LinformerAttention") -> None:
        """Take another layer's projections for this one's, where `sharing` is "model", or `as_in_table3`."""
        if self.sharing == "model" or self.as_in_table3:
            self.key_projection_GKL = first.key_projection_GKL
            self.value_projection_GKL = first.value_projection_GKL

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        if self.as_in_table3:
            return self.attend_rows(q, k, v, None)
        return super().attend(q, k, v, mask)

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        length = q.shape[2]
        if length > self.max_length:
            raise ValueError(
                f"linformer has learned projections of {self.max_length} tokens (max_length; max_seq_len of a model), "
                f"found {length}: cut the input, or train with more"
            )
        # Tokens that do not count are zero, and add nothing to a sum.
        keys_BHKD = _projected(self.key_projection_GKL, k)
        values = self.key_projection_GKL if self.value_projection_GKL is None else self.value_projection_GKL
        return F.scaled_dot_product_attention(q, keys_BHKD, _projected(values, v))

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, max_length={self.max_length}, projected_length={self.projected_length}, "
            f"sharing={self.sharing!r}, share_keys_and_values={self.share_keys_and_values}, "
            f"as_in_table3={self.as_in_table3}"
        )


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
