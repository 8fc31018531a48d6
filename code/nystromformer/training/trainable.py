"""What the loop asks of that which it trains, and batches that are made ahead."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")

Batch = Mapping[str, Tensor]
_END: Any = object()


@dataclass(frozen=True)
class Step:
    """This process' part of a step's global batch, cut into micro-batches; all losses add up to the global batch's.

    Every process has as many micro-batches.
    """

    micro_batches: Sequence[Batch]
    tokens: int
    """Valid tokens of the global batch, for the speed that is shown."""

    def pin_memory(self) -> "Step":
        """The step in page-locked memory."""
        return Step([{name: x.pin_memory() for name, x in batch.items()} for batch in self.micro_batches], self.tokens)


def to_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """The batch on the device; the copy does not wait where the memory is pinned."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def micro_batch_slices(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows out of `count`."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class Trainable(Protocol):
    """What the loop trains. The loop knows no more of it than this."""

    @property
    def model(self) -> nn.Module:
        """What is trained, as `place` gives it."""

    def steps(self, first: int, last: int) -> Iterator[Step]:
        """The batches of steps first … last-1; a pure function of the step's number."""

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A micro-batch's share of the global batch's loss, and its sums (1-D, detached) for `metrics`."""

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Names and values, "loss" among them, from sums added over micro-batches and steps."""

    def validate(self) -> dict[str, float]:
        """Metrics on held-out data, the same data every time; of all processes together."""


def prefetched(items: Iterable[T], depth: int = 2) -> Iterator[T]:
    """The items, which a thread makes up to `depth` before they are asked for.

    What making an item raises is raised where that item is asked for. Leaving the loop early ends the thread.
    """
    iterator = iter(items)
    thread = ThreadPoolExecutor(1, "prefetch")
    try:
        made = deque(thread.submit(next, iterator, _END) for _ in range(depth))
        while (item := made.popleft().result()) is not _END:
            made.append(thread.submit(next, iterator, _END))
            yield item
    finally:
        thread.shutdown(cancel_futures=True)


def prefetch_batches(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on the device, made in a thread."""
    steps = (Step([batch], tokens=0) for batch in batches)
    for step in prefetched(step.pin_memory() if device.type == "cuda" else step for step in steps):
        yield to_device(step.micro_batches[0], device)
