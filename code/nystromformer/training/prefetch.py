"""Preparing ahead: the next steps are made in a thread, and copied to a GPU, while this one is computed."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from nystromformer.training.trainable import Batch, Step, to_device

S = TypeVar("S")
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


def begin_next(items: Iterable[S], begin: Callable[[S], T]) -> Iterator[T]:
    """`begin(item)` of each item, which is called for the next one before this one is given out."""
    begun: list[T] = []
    for item in items:
        begun.append(begin(item))
        if len(begun) == 2:
            yield begun.pop(0)
    yield from begun


def copy_steps(steps: Iterable[Step], device: torch.device) -> Iterator[Step]:
    """The steps on the device. To a GPU the next step is copied on a stream of its own while this one is computed, and
    what is computed with it waits there, on the GPU, for the copy."""
    if device.type != "cuda":
        yield from steps
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(step: Step) -> tuple[Step, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            copied = Step([to_device(batch, device) for batch in step.micro_batches], step.tokens)
            return copied, stream.record_event()

    for step, done in begin_next(steps, begin):
        current = torch.cuda.current_stream(device)
        current.wait_event(done)
        for batch in step.micro_batches:
            for tensor in batch.values():
                tensor.record_stream(current)  # or the other stream would take its memory for the next copy too soon
        yield step


def prefetch_batches(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on the device, made in a thread; to a GPU each is copied while the one before is computed."""
    pinned = device.type == "cuda"
    steps = (Step([batch], tokens=0) for batch in batches)
    for step in copy_steps(prefetched(step.pin_memory() if pinned else step for step in steps), device):
        yield step.micro_batches[0]
