"""Each row's own tokens in one piece, for methods whose structure goes by a token's place among them.

Blocks, windows, strides and projections must not depend on padding or on holes in the mask: such methods see the valid
tokens of a row first, in their order, and zeros behind them.

Shapes: B batch, H heads, N tokens, Q queries, L the longest input, D head dim.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import Attention, Holds, Needs
from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.scores import infinite_bias
from nystromformer.config.attention import AttentionConfig
from nystromformer.config.attention.methods import BigBirdConfig, LongformerConfig


class RowsAttention(Attention):
    """An attention by the places of tokens among a row's valid ones."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        return _in_rows(self.attend_rows, q, k, v, mask)

    @abstractmethod
    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        """The method itself.

        Args:
            q, k, v: (B, H, N, D); the first `lengths_B` tokens of each row count, the others are zero.
            lengths_B: int64, from 0 to N; None: all tokens count.

        Returns:
            (B, H, N, D); what is returned for tokens that do not count has no meaning, but must be finite.
        """


class LearnedRowsAttention(RowsAttention):
    """The same with something learned for each place up to L: shorter input uses the first of it, and longer input is
    refused, because for that nothing was learned.

    Args:
        max_length: L.
    """

    needs = Needs(max_length=True)

    def __init__(self, config: AttentionConfig, num_heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(config, num_heads, head_dim)
        self.max_length = max_length

    @property
    def holds(self) -> Holds:
        return replace(super().holds, any_length=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        if q.shape[2] > self.max_length:
            raise ValueError(
                f"{self.config.name} has learned weights for {self.max_length} tokens (max_length; max_seq_len of a "
                f"model), found {q.shape[2]}: shorten the input, or train with a larger max_length"
            )
        return super().attend(q, k, v, mask)


class GlobalRowsAttention(Attention):
    """The same with tokens that are global: the first valid ones of each row, and those that the mask marks. With an
    ignored mask marks still count, also those at masked positions.
    """

    config: BigBirdConfig | LongformerConfig
    needs = Needs(global_tokens=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        first = self.config.num_global_tokens
        if mask is None:
            tokens = GlobalTokens.of_length(q.shape[0], q.shape[2], first, q.device)
        else:
            tokens = mask.global_tokens(first, self.config.global_capacity)
        some = tokens if tokens.places_BG.shape[1] else None
        return _in_rows(lambda q, k, v, lengths_B: self.attend_rows(q, k, v, lengths_B, some), q, k, v, mask)

    @abstractmethod
    def attend_rows(
        self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None, tokens: GlobalTokens | None
    ) -> Tensor:
        """As of `RowsAttention`; `tokens`: the global ones, None where there are none in any row."""

    def _applied(self, mask: Tensor | AttentionMask | None, q: Tensor) -> AttentionMask | None:
        wrapped = AttentionMask.wrap(mask, q)
        if not self.config.ignore_mask or wrapped is None:
            return wrapped
        return None if wrapped.global_BN is None else wrapped.with_all_tokens


def attend_to_all(
    q_BHQD: Tensor, k_BHND: Tensor, v_BHND: Tensor, lengths_B: Tensor | None, scale: float | None = None
) -> Tensor:
    """softmax over all valid tokens of a row, (B, H, Q, D); for a row without valid tokens what stands at its first
    place.

    Args:
        lengths_B: as of `RowsAttention.attend_rows`.
        scale: of the scores; None: 1/√D.
    """
    bias_B11N = None
    if lengths_B is not None:
        keys_BN = torch.arange(k_BHND.shape[2], device=lengths_B.device) < lengths_B.clamp(min=1)[:, None]
        bias_B11N = infinite_bias(keys_BN, q_BHQD.dtype)[:, None, None]
    return F.scaled_dot_product_attention(q_BHQD, k_BHND, v_BHND, attn_mask=bias_B11N, scale=scale)


def _in_rows(
    method: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask | None,
) -> Tensor:
    if mask is None:
        return method(q, k, v, None)
    order = mask.order
    if order is None:
        return method(q, k, v, mask.lengths_B)
    q, k, v = (_taken(x, order.tokens_BN) for x in (q, k, v))
    return _taken(method(q, k, v, mask.lengths_B), order.places_BN)


def _taken(x_BHND: Tensor, indices_BN: Tensor) -> Tensor:
    return x_BHND.gather(2, indices_BN[:, None, :, None].expand_as(x_BHND))
