"""Each row's own tokens in one piece, for methods whose structure goes by a token's place among them.

Blocks, windows, strides and projections must not depend on padding or on holes in the mask: such methods see the valid
tokens of a row first, in their order, and zeros behind them.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from nystromformer.attention.base import Attention, Needs
from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.mask import AttentionMask
from nystromformer.config.attention.bigbird import BigBirdConfig
from nystromformer.config.attention.longformer import LongformerConfig


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


class GlobalRowsAttention(Attention):
    """The same with tokens that are global: the first valid ones of each row, and those that the mask marks. With an
    ignored mask marks still count, also those at masked positions.
    """

    config: BigBirdConfig | LongformerConfig
    needs = Needs(global_tokens=True)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        tokens = self._global_tokens(q, mask)

        def attend_rows(q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
            return self.attend_rows(q, k, v, lengths_B, tokens)

        return _in_rows(attend_rows, q, k, v, mask)

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

    def _global_tokens(self, q: Tensor, mask: AttentionMask | None) -> GlobalTokens | None:
        first = self.config.num_global_tokens
        if mask is None:
            tokens = GlobalTokens.of_length(q.shape[0], q.shape[2], first, q.device)
        else:
            tokens = mask.global_tokens(first, self.config.global_capacity)
        return tokens if tokens.places_BG.shape[1] else None


def valid(lengths_B: Tensor | None, size: int) -> Tensor | None:
    """(B, size) bool: which of the first `size` places have a token that counts; None where all have."""
    if lengths_B is None:
        return None
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


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
