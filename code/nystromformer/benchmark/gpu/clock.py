"""Times on the device: by its own events, with the host's work out of the way."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch

from nystromformer.benchmark.timing import Timing, Work, no_collections, summarise, wait_for_device

_HEAD_START = 8_000_000
"""Cycles that the device waits before what is timed, about 4 ms: meanwhile the host has launched all of it."""


class Moment:
    """A point in the device's work; on a CPU, in time."""

    def __init__(self, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self._event = torch.cuda.Event(enable_timing=True) if on_gpu else None  # type: ignore[no-untyped-call]
        self._seconds = 0.0

    def mark(self) -> None:
        if self._event is not None:
            self._event.record()
        else:
            self._seconds = time.perf_counter()

    def until(self, later: "Moment") -> float:
        """Milliseconds; both have passed, which a synchronisation makes sure of."""
        if self._event is not None and later._event is not None:
            return float(self._event.elapsed_time(later._event))
        return 1e3 * (later._seconds - self._seconds)


def mark_around(work: Work, device: torch.device) -> tuple[Moment, Moment]:
    """Run something with the device's cache empty and the device busy before it, so that gaps between launches are not
    measured; the moments before and after it.
    """
    first, last = Moment(device), Moment(device)
    if device.type == "cuda":
        # Read, not written: what is written would have to leave the cache within what is timed.
        _past_cache().sum()
        torch.cuda._sleep(_HEAD_START)  # type: ignore[no-untyped-call]
    first.mark()
    work()
    last.mark()
    return first, last


@cache
def _past_cache() -> torch.Tensor:
    """Twice what the device's cache holds."""
    size = 2 * torch.cuda.get_device_properties().L2_cache_size
    return torch.zeros(size // 4, device="cuda")


@dataclass(frozen=True)
class Repeats:
    """How often something is repeated: as often as takes `seconds`, within limits."""

    seconds: float
    least: int
    most: int

    def fitting(self, once: float) -> int:
        """Of something that takes `once` seconds."""
        return max(self.least, min(self.most, int(self.seconds / max(once, 1e-9))))

    def of(self, works: Iterable[Work], device: torch.device) -> int:
        """Of these works, which are warm then; where there is no choice they are not run."""
        if self.least == self.most:
            return self.most
        works = list(works)
        for work in works:
            work()
        wait_for_device()
        begin = time.perf_counter()
        for work in works:
            mark_around(work, device)
        wait_for_device()
        return self.fitting(time.perf_counter() - begin)


def times_in_turn(works: Mapping[str, Work], device: torch.device, wanted: Repeats) -> dict[str, Timing]:
    """Time all in turn, again and again."""
    if not works:
        return {}
    repeats = wanted.of(works.values(), device)
    samples: dict[str, list[float]] = {name: [] for name in works}
    with no_collections():
        for _ in range(repeats):
            passed = {name: mark_around(work, device) for name, work in works.items()}
            wait_for_device()
            for name, (first, last) in passed.items():
                samples[name].append(first.until(last))
    return {name: summarise(values) for name, values in samples.items()}
