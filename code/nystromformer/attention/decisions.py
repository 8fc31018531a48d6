"""Choosing keys and blocks by their scores, for methods that are exact where attention is large; and decisions that a
second computation from rounded input must not take anew.

Into which of two buckets a token falls, the last digit of a number may decide. Code that computes an attention twice,
the second time from input that it has up to rounding only, records what was decided and has it repeated.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.tracing import is_exporting


class _Current(threading.local):
    record: list[Tensor] | None = None
    replay: Iterator[Tensor] | None = None


_current = _Current()


def decided(decide: Callable[[], Tensor]) -> Tensor:
    """What `decide` gives, or what it gave in the computation that is repeated."""
    if torch.compiler.is_compiling():
        return decide()
    if _current.replay is not None:
        return next(_current.replay)
    decision = decide()
    if _current.record is not None:
        _current.record.append(decision)
    return decision


@contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """Within the block, decisions are put into the list that it is given."""
    before, _current.record = _current.record, []
    try:
        yield _current.record
    finally:
        _current.record = before


@contextmanager
def repeated(decisions: list[Tensor]) -> Iterator[None]:
    """Within the block, decisions are these, in their order."""
    before, _current.replay = _current.replay, iter(decisions)
    try:
        yield
    finally:
        _current.replay = before


def greatest(scores: Tensor, usable: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The places of the greatest scores along the last dimension, greatest first; of equal ones the earlier first.

    Args:
        scores: compared in float32.
        usable: bool, broadcast to the scores: which may be chosen.

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
