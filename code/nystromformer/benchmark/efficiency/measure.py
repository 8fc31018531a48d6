"""The cells of the tables, one length after the other, all methods of a length in turn."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from nystromformer.benchmark.efficiency.methods import CONTROL, Method
from nystromformer.benchmark.efficiency.parts import Part, Works
from nystromformer.benchmark.timing import Timing, peak_memory, repeats_at, time_side_by_side
from nystromformer.errors import UserError

logger = logging.getLogger(__name__)

_PROBES = (1024, 2048)
"""Lengths at which one row is tried first where all that are asked for are longer."""
_OVER = "budget: it was over"
_ROOM = 0.85
"""How much of the memory that is free a cell may be expected to take."""


@dataclass(frozen=True)
class Cost:
    """Of one forward and backward pass."""

    seconds: float
    memory: float
    """MiB at the peak."""


class Forecast:
    """The cost of one method by length, carried on from the lengths that are known."""

    def __init__(self) -> None:
        self._costs: dict[int, Cost] = {}

    def learn(self, length: int, cost: Cost) -> None:
        self._costs[length] = cost

    def at(self, length: int) -> Cost | None:
        """Along the line through the last two known lengths on logarithmic axes, no flatter than proportional and no
        steeper than with the square; with the square from one alone. None where nothing is known.
        """
        if not self._costs:
            return None
        *before, last = sorted(self._costs)
        latest = self._costs[last]

        def carried(now: float, then: float | None, distance: float) -> float:
            exponent = 2.0 if then is None or min(now, then) <= 0 else math.log(now / then) / distance
            growth = min(2.0, max(1.0, exponent)) if length > last else 1.0
            return now * math.exp(growth * math.log(length / last))

        if not before:
            return Cost(carried(latest.seconds, None, 1), carried(latest.memory, None, 1))
        then, distance = self._costs[before[-1]], math.log(last / before[-1])
        return Cost(carried(latest.seconds, then.seconds, distance), carried(latest.memory, then.memory, distance))


@dataclass(frozen=True)
class Cell:
    """One method at one length."""

    part: str
    length: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward; of an encoder, a step of training."""
    memory: float
    """MiB at the peak of forward and backward."""
    forward_memory: float
    """At that of forward alone, without gradients."""


@dataclass(frozen=True)
class LeftOut:
    """One that was not measured."""

    part: str
    length: int
    method: str
    why: str


@dataclass
class Found:
    """What there is so far."""

    cells: list[Cell] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)


def measure(
    part: Part, methods: Sequence[Method], lengths: Sequence[int], repeats: int, seconds: float, free: float
) -> Iterator[Found]:
    """Measure a part, from short to long, and give what was found at each length.

    Args:
        repeats: measurements of a cell at up to 2048 tokens.
        seconds: that it may take; what they do not allow is left out, the costliest first.
        free: MiB that there are.

    Raises:
        UserError: neither time nor memory are enough for a single cell.
    """
    until = time.monotonic() + seconds
    forecasts = {method.name: Forecast() for method in methods}
    _probe(part, methods, lengths, forecasts)
    any_measured = False
    for number, length in enumerate(sorted(lengths)):
        found = Found()
        chosen = []
        for method in methods:
            left = until - time.monotonic()
            why = _why_not(method, forecasts[method.name].at(length), length, repeats, left, free)
            if why is None and number and left <= 0:
                # Of a method of which nothing is known the shortest length alone is tried without time.
                why = _OVER
            if why is None:
                chosen.append(method)
            else:
                found.left_out.append(LeftOut(part.name, length, method.name, why))
        if chosen:
            _measure_at(part, chosen, length, repeats, until, forecasts, found)
        any_measured = any_measured or any(cell.method != CONTROL for cell in found.cells)
        logger.info("%s, %d tokens: %d measured, %d left out", part.name, length, len(found.cells), len(found.left_out))
        yield found
    if not any_measured:
        last = found.left_out[-1] if found.left_out else None
        example = f": {last.method} at {last.length} tokens: {last.why}" if last else ""
        raise UserError(
            f"nothing of the part {part.name!r} could be measured{example}; raise --budget or lower --lengths"
        )


def _probe(part: Part, methods: Sequence[Method], lengths: Sequence[int], forecasts: Mapping[str, Forecast]) -> None:
    for length in _PROBES:
        if length >= min(lengths):
            return
        able = [method for method in methods if method.why_not(length) is None]
        for name, works in part.works(able, length, 1).items():
            memory = peak_memory(works.both) + works.standing
            forecasts[name].learn(length, Cost(part.batch * _second_time(works), part.batch * memory))


def _why_not(method: Method, cost: Cost | None, length: int, repeats: int, seconds: float, free: float) -> str | None:
    if (reason := method.why_not(length)) is not None:
        return reason
    if cost is None:
        return None
    if cost.memory > _ROOM * free:
        return f"memory: about {cost.memory / 1024:,.1f} GiB, of {free / 1024:,.1f} that were free"
    needed = cost.seconds * _passes(length, repeats)
    return _over(needed, seconds) if needed > seconds else None


def _passes(length: int, repeats: int) -> float:
    """Passes forward and backward that a cell takes beside its first two: its measurements, those forward alone, which
    take about a third, and the one that tells the peak of memory, which a profiler slows.
    """
    return repeats_at(length, repeats) * 4 / 3 + 3


def _over(needed: float, left: float) -> str:
    return f"budget: some {needed:,.0f} s, {max(0.0, left):,.0f} were left"


def _measure_at(
    part: Part,
    methods: list[Method],
    length: int,
    repeats: int,
    until: float,
    forecasts: Mapping[str, Forecast],
    found: Found,
) -> None:
    works = dict(part.works(methods, length, part.batch))
    seconds: dict[str, float] = {}
    for name, each in list(works.items()):
        if seconds and time.monotonic() > until:
            found.left_out.append(LeftOut(part.name, length, name, _OVER))
            del works[name]
            continue
        try:
            seconds[name] = _second_time(each)
        except RuntimeError as error:
            if not _is_of_memory(error):
                raise
            found.left_out.append(LeftOut(part.name, length, name, "memory: it was tried, and there was too little"))
            del works[name]
    needed = {name: each * _passes(length, repeats) for name, each in seconds.items()}
    while works and sum(needed.values()) > (left := until - time.monotonic()):
        costliest = max(needed, key=lambda name: needed[name])
        found.left_out.append(LeftOut(part.name, length, costliest, _over(needed.pop(costliest), left)))
        del works[costliest]
    if not works:
        return
    repeats = repeats_at(length, repeats)
    with torch.no_grad():
        forward = time_side_by_side({name: each.forward for name, each in works.items()}, repeats, warmup=1)
    both = time_side_by_side({name: each.both for name, each in works.items()}, repeats, warmup=0)
    for name, each in works.items():
        memory = peak_memory(each.both) + each.standing
        with torch.no_grad():
            forward_memory = peak_memory(each.forward) + each.standing_forward
        forecasts[name].learn(length, Cost(both[name].median / 1e3, memory))
        cell = Cell(part.name, length, name, forward[name], both[name], memory, forward_memory)
        found.cells.append(cell)


def _second_time(works: Works) -> float:
    """Seconds of a pass forward and backward after a first, slower one."""
    return time_side_by_side({"": works.both}, repeats=1, warmup=1)[""].median / 1e3


def _is_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
