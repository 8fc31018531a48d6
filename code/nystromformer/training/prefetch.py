"""Preparing ahead: what comes next is made in a thread while this is computed."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from nystromformer.training.trainable import Batch, Step, to_device

T = TypeVar("T")

_END: Any = object()


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
