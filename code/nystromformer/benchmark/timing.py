"""Timing side by side in one process, and the peak of memory.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import gc
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds over the repeats."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""


def quartiles(timing: Mapping[str, float], form: str = ".2f") -> str:
    """What a record has of a `Timing`, for a table."""
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
    return {name: Timing(*map(float, np.percentile(values, (50, 25, 75)))) for name, values in samples.items()}


def repeats_at(length: int, repeats: int) -> int:
    """How often something is measured at a length: as asked up to 2048 tokens; above, as much more seldom as it is
    longer, but 3 times.
    """
    return max(min(3, repeats), repeats * 2048 // max(length, 2048))


def draw_inputs(
    size_BNHD: tuple[int, int, int, int], device: torch.device, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Q, K, V and a gradient of the output, each (B, H, N, D): standard normal, laid out as projections give them."""
    torch.manual_seed(0)
    return [torch.randn(size_BNHD, device=device, dtype=dtype).transpose(1, 2) for _ in range(4)]


def attention_passes(
    method: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    parameters: Iterable[nn.Parameter] = (),
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> tuple[Work, Work]:
    """What is timed of a method, which gives (B, H, N, D) or (B, N, H·D): forward without gradients; and forward with
    the gradients of the inputs and of the method's parameters.

    Args:
        inputs: as `draw_inputs` gives them.
        context: of the forward pass, such as an autocast.
    """
    *leaves, upstream_BHND = inputs
    leaves = [x.detach().requires_grad_() for x in leaves]
    wanted = [*leaves, *(each for each in parameters if each.requires_grad)]

    def attend() -> Tensor:
        with context():
            return method(*leaves)

    def both() -> object:
        out = attend()
        upstream = upstream_BHND if out.ndim == 4 else upstream_BHND.transpose(1, 2).flatten(2)
        # What makes its keys of the queries has no use for k.
        return torch.autograd.grad(out, wanted, upstream.to(out.dtype), allow_unused=True)

    return torch.no_grad()(attend), both


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
