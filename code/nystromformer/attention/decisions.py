"""Decisions of an attention that a second computation from rounded input must not take anew.

Into which of two buckets a token falls, the last digit of a number may decide. Code that computes an attention twice,
the second time from input that it has up to rounding only, records what was decided and has it repeated.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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
