"""Each row's own tokens in one piece, for methods whose structure goes by a token's place among them.

Blocks, windows, strides and projections must not depend on padding or on holes in the mask: such methods see the valid
tokens of a row first, in their order, and zeros behind them.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from nystromformer.attention.base import Attention
from nystromformer.attention.mask import AttentionMask


class RowsAttention(Attention):
    """An attention by the places of tokens among a row's valid ones."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        if mask is None:
            return self.attend_rows(q, k, v, None)
        order = mask.order
        if order is None:
            return self.attend_rows(q, k, v, mask.lengths_B)
        q, k, v = (_taken(x, order.tokens_BN) for x in (q, k, v))
        out = self.attend_rows(q, k, v, mask.lengths_B)
        return _taken(out, order.places_BN)

    @abstractmethod
    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        """The method itself.

        Args:
            q, k, v: (B, H, N, D); the first `lengths_B` tokens of each row count, the others are zero.
            lengths_B: int64, from 0 to N; None: all tokens count.

        Returns:
            (B, H, N, D); what is returned for tokens that do not count has no meaning, but must be finite.
        """


def valid(lengths_B: Tensor | None, size: int) -> Tensor | None:
    """(B, size) bool: which of the first `size` places have a token that counts; None where all have."""
    if lengths_B is None:
        return None
    return torch.arange(size, device=lengths_B.device) < lengths_B[:, None]


def _taken(x_BHND: Tensor, indices_BN: Tensor) -> Tensor:
    return x_BHND.gather(2, indices_BN[:, None, :, None].expand_as(x_BHND))
