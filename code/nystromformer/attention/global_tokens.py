"""Global tokens: those of a row that attend to all of its valid tokens, and to which all of them attend.

They are a row's first tokens and those that the caller marks. Each has a slot; the number of slots is known without
waiting for the device, so a row may leave some of them empty. A token's place is that among its row's valid ones, as in
rows.py.

Shapes: B batch, H heads, N tokens, G slots, M of them for marked tokens, D head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_SLOTS_STEP = 16
"""Slots that are as many as a batch needs are rounded up to a multiple of it, for fewer different shapes."""


class GlobalTokens(NamedTuple):
    """The global tokens of each row."""

    places_BG: Tensor
    """int64: the place of each slot's token; of an empty slot any place."""
    there_BG: Tensor
    """bool: False for an empty slot."""
    is_global_BN: Tensor
    """bool, by place: the same tokens."""

    @staticmethod
    def of_length(batch: int, length: int, num_first: int, device: torch.device) -> GlobalTokens:
        """The first tokens of rows whose tokens all count."""
        first_G = torch.arange(num_first, device=device).expand(batch, -1)
        is_global_BN = (torch.arange(length, device=device) < num_first).expand(batch, -1)
        return GlobalTokens(first_G.clamp(max=length - 1), first_G < length, is_global_BN)

    @staticmethod
    def of_rows(
        lengths_B: Tensor, marked_BN: Tensor | None, length: int, num_first: int, capacity: int, can_look: bool
    ) -> GlobalTokens:
        """The first tokens of rows, and those that are marked.

        Args:
            lengths_B: each row's valid tokens.
            marked_BN: bool, by place; places without a valid token are not marked.
            num_first: slots for first tokens, marked or not.
            capacity: marked tokens that a row may have beside them.
            can_look: whether the number of marked tokens may be asked for; else each row gets `capacity` slots.

        Raises:
            ValueError: a row has more marked tokens; a RuntimeError where one cannot look.
        """
        device = lengths_B.device
        places_BG, _, first_BN = GlobalTokens.of_length(lengths_B.shape[0], length, num_first, device)
        there_BG = torch.arange(num_first, device=device) < lengths_B[:, None]
        is_global_BN = first_BN & (torch.arange(length, device=device) < lengths_B[:, None])
        if marked_BN is None:
            return GlobalTokens(places_BG, there_BG, is_global_BN)
        marked_BN = marked_BN & ~first_BN
        places_BM, there_BM = _slots(marked_BN, num_first, capacity, can_look)
        slots = torch.cat([places_BG, places_BM], 1), torch.cat([there_BG, there_BM], 1)
        return GlobalTokens(*slots, is_global_BN | marked_BN)

    def taken(self, x_BHND: Tensor) -> Tensor:
        """(B, H, G, D): what stands at the tokens' places; in empty slots what stands at some other."""
        _, H, _, D = x_BHND.shape
        return x_BHND.gather(2, self.places_BG[:, None, :, None].expand(-1, H, -1, D))

    def placed(self, own_BHGD: Tensor, out_BHND: Tensor) -> Tensor:
        """`out_BHND` with `own_BHGD` at the tokens' places; what stands in empty slots goes nowhere."""
        _, H, N, D = out_BHND.shape
        own_BGX = own_BHGD.transpose(1, 2).flatten(2)
        places_BG = torch.where(self.there_BG, self.places_BG, N)  # N: a place that is cut off again
        # Padding of three sizes, for the reason that grid.py gives.
        out_BLX = F.pad(out_BHND.transpose(1, 2).flatten(2), (0, 0, 0, 1))
        # In place: the padded copy needs no second one.
        out_BLX = out_BLX.scatter_(1, places_BG[:, :, None].expand_as(own_BGX), own_BGX)
        return out_BLX[:, :N].unflatten(2, (H, D)).transpose(1, 2)


def _slots(marked_BN: Tensor, num_first: int, capacity: int, can_look: bool) -> tuple[Tensor, Tensor]:
    """Places and `there` of marked tokens, (B, M) each."""
    batch, length = marked_BN.shape
    counts_BN = marked_BN.cumsum(1)
    remedy = f"global_capacity = {capacity}: raise it, or mark fewer tokens"
    if can_look:
        most = int(counts_BN[:, -1].max())
        if most > capacity:
            raise ValueError(
                f"a row has {most} tokens marked as global (not counting its first {num_first}), expected at most "
                f"{remedy}"
            )
        slots = min(-(-most // _SLOTS_STEP) * _SLOTS_STEP, capacity)
    else:
        fits = (counts_BN[:, -1] <= capacity).all()
        torch._assert_async(fits, f"a row has more tokens marked as global than {remedy}")
        # A row has no more; a program for all lengths cannot tell which is less.
        slots = capacity if torch.compiler.is_exporting() else min(capacity, length)
    # The n-th marked token stands where the count first reaches n.
    numbers_M = torch.arange(slots, device=marked_BN.device)
    places_BM = torch.searchsorted(counts_BN, (numbers_M + 1).expand(batch, -1).contiguous())
    return places_BM.clamp(max=length - 1), numbers_M < counts_BN[:, -1:]
