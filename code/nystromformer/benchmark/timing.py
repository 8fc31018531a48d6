"""Timing side by side in one process, and the peak of memory."""

import gc
import random
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

Work = Callable[[], object]


Timing = dict[str, float]
"""Milliseconds over the repeats: their `median` and the first and third quartile, `low` and `high`."""


def quartiles(timing: Timing, form: str = ".2f") -> str:
    """For a table."""
    return "{median:{form}} ({low:{form}}-{high:{form}})".format(**timing, form=form)


def time_side_by_side(works: Mapping[str, Work], repeats: int, warmup: int = 2) -> dict[str, Timing]:
    """Run all in turn, again and again, so that whatever else the machine does falls on all of them alike; each time
    in another order, because what one leaves in the caches speeds up the next.
    """
    for work in works.values():
        for _ in range(warmup):
            work()
    samples: dict[str, list[float]] = {name: [] for name in works}
    gc.collect()
    gc.disable()
    try:
        for repeat in range(repeats):
            for name in random.Random(repeat).sample(list(works), len(works)):
                work = works[name]
                _wait_for_device()
                begin = time.perf_counter()
                work()
                _wait_for_device()
                samples[name].append(1e3 * (time.perf_counter() - begin))
    finally:
        gc.enable()
    shares = {"median": 50, "low": 25, "high": 75}
    return {
        name: {key: float(np.percentile(values, share)) for key, share in shares.items()}
        for name, values in samples.items()
    }


def repeats_at(length: int, repeats: int) -> int:
    """How often something is measured at a length: as asked up to 2048 tokens; above, as much more seldom as it is
    longer, but 3 times.
    """
    return max(min(3, repeats), repeats * 2048 // max(length, 2048))


def peak_memory(work: Work) -> float:
    """MiB that tensors take at the most while the work runs, beyond what was there before."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    kineto = profile.profiler.kineto_results if profile.profiler is not None else None
    assert kineto is not None, "the profiler ran"
    changes = [(event.start_ns(), event.nbytes()) for event in kineto.events() if event.name() == "[memory]"]
    return float(np.cumsum([0, *(change for _, change in sorted(changes, key=lambda each: each[0]))]).max()) / 2**20


def _wait_for_device() -> None:
    """Until a GPU has done all that it was given; without one nothing is to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
