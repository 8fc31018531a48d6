"""Choosing keys and blocks by their scores, for methods that are exact where attention is large."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.tracing import is_exporting


def greatest(scores: Tensor, usable: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of the greatest scores along the last dimension, greatest first; of equal ones the earlier first.

    Args:
        scores: compared in float32.
        usable: bool, broadcast to the scores: which may be chosen.
        count: how many.

    Returns:
        (…, count) each: int64, and bool, False where there are no more to choose from.
    """
    size = scores.shape[-1]
    if is_exporting():  # ONNX has no bits of numbers
        floats = scores.float().masked_fill(~usable, -torch.inf)
        floats = torch.cat([floats, floats.new_full((*floats.shape[:-1], count), -torch.inf)], -1)
        values, places = floats.sort(dim=-1, descending=True, stable=True)
        there = values[..., :count] > -torch.inf
        return places[..., :count].where(there, 0), there
    bits = scores.float().contiguous().view(torch.int32).long()
    # The bits of a float that is not negative have its order, those of a negative one the reverse. Below them stands
    # the place, so that no two are equal.
    ordered = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    keys = (ordered << 31) - torch.arange(size, device=scores.device)
    least = -(2**62)
    keys = F.pad(keys.masked_fill(~usable, least), (0, count), value=least)
    found = torch.topk(keys, count, dim=-1)
    there = found.values > least
    return found.indices.where(there, 0), there
