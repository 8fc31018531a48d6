"""Timing side by side in one process, and the peak of memory."""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nystromformer.resources import check_room, free_memory

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds over the repeats."""

    median: float
    low: float
    """The first quartile."""
    high: float
    """The third quartile."""

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def figure(record: object, name: str) -> float:
    """A record's figure by its name; of a `Timing` the median."""
    value = getattr(record, name)
    return float(value.median if isinstance(value, Timing) else value)


def time_side_by_side(works: Mapping[str, Work], repeats: int, warmup: int = 2) -> dict[str, Timing]:
    """Run all in turn, again and again, so that whatever else the machine does falls on all of them alike; each time
    in another order, because what one leaves in the caches speeds up the next.
    """
    for work in works.values():
        for _ in range(warmup):
            work()
    samples: dict[str, list[float]] = {name: [] for name in works}
    with no_collections():
        for repeat in range(repeats):
            for name in random.Random(repeat).sample(list(works), len(works)):
                work = works[name]
                wait_for_device()
                begin = time.perf_counter()
                work()
                wait_for_device()
                samples[name].append(1e3 * (time.perf_counter() - begin))
    return {name: summarise(values) for name, values in samples.items()}


@contextmanager
def no_collections() -> Iterator[None]:
    """Within, Python's garbage collector does not run."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def repeats_at(length: int, repeats: int) -> int:
    """How often something is measured at a length: as asked up to 2048 tokens; above, as much more seldom as it is
    longer, but 3 times.
    """
    return max(min(3, repeats), repeats * 2048 // max(length, 2048))


def attention_works(
    methods: Mapping[str, Callable[..., Tensor]], size: tuple[int, int, int, int], device: torch.device
) -> tuple[dict[str, Work], dict[str, Work]]:
    """Of each method the forward pass, and forward and backward, on queries, keys and values that all share.

    Args:
        methods: modules or functions; each gives (B, H, N, D) or (B, N, H·D).
        size: batch, tokens, heads, head dim.
    """
    torch.manual_seed(0)
    # In the layout in which an encoder's projections give them.
    inputs = [torch.randn(size, device=device).transpose(1, 2).requires_grad_() for _ in range(3)]
    upstream_BHND = torch.randn(size, device=device).transpose(1, 2)
    forwards: dict[str, Work] = {}
    boths: dict[str, Work] = {}
    for name, call in methods.items():
        parameters = call.to(device).parameters() if isinstance(call, nn.Module) else ()
        wanted = [*inputs, *(each for each in parameters if each.requires_grad)]
        forwards[name] = partial(call, *inputs)
        boths[name] = partial(_gradients, call, inputs, wanted, upstream_BHND)
    return forwards, boths


def check_memory(batch: int, lengths: Sequence[int], width: int) -> None:
    """Check that there is memory for queries, keys, values, their gradients and that of the output.

    Raises:
        UserError: says how much they take, and how much there is.
    """
    length = max(lengths)
    size = 7.0 * 4 * batch * length * width
    on_gpu = torch.cuda.is_available()
    check_room(
        f"--batch {batch} --lengths {length}: this",
        {"queries, keys, values and gradients": size},
        free_memory(torch.device("cuda")) if on_gpu else free_memory(swap=True),
        "on the GPU" if on_gpu else "on this machine",
        "lower one of the two",
    )


def _gradients(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], wanted: Sequence[Tensor], upstream_BHND: Tensor
) -> object:
    out = call(*inputs)
    upstream = upstream_BHND if out.ndim == 4 else upstream_BHND.transpose(1, 2).flatten(2)
    # What makes its keys of the queries has no use for k.
    return torch.autograd.grad(out, wanted, upstream, allow_unused=True)


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
    now = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):
        now += change
        peak = max(peak, now)
    return peak / 2**20


def summarise(values: list[float]) -> Timing:
    """Of one measurement all three are its value."""
    if len(values) == 1:
        return Timing(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(middle, low, high)


def wait_for_device() -> None:
    """Until a GPU has done all that it was given; without one nothing is to wait for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
