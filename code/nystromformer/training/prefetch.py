"""Preparing ahead: the next steps are made in a thread, and copied to a GPU, while this one is computed."""

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from nystromformer.training.trainable import Batch, Step, to_device

S = TypeVar("S")
T = TypeVar("T")

_END = object()


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class Prefetched(Generic[T]):
    """An iterable whose items a thread makes up to `depth` before they are asked for.

    What making an item raises is raised where that item is asked for. Leaving the loop early ends the thread.
    """

    def __init__(self, items: Iterable[T], depth: int = 2) -> None:
        self._items = items
        self._depth = depth

    def __iter__(self) -> Iterator[T]:
        items: queue.Queue[object] = queue.Queue(self._depth)
        left = threading.Event()
        thread = threading.Thread(target=self._make, args=(items, left), name="prefetch", daemon=True)
        thread.start()
        try:
            while (item := items.get()) is not _END:
                if isinstance(item, _Failure):
                    raise item.error
                yield item  # type: ignore[misc]  # the queue holds items beside the two marks
        finally:
            left.set()
            thread.join()

    def _make(self, items: queue.Queue[object], left: threading.Event) -> None:
        try:
            for item in self._items:
                if not _put(items, item, left):
                    return
            _put(items, _END, left)
        except BaseException as error:
            _put(items, _Failure(error), left)


def _put(items: queue.Queue[object], item: object, left: threading.Event) -> bool:
    """Wait for a place in the queue; False once nobody asks any more."""
    while not left.is_set():
        try:
            items.put(item, timeout=0.05)
        except queue.Full:
            continue
        return True
    return False


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
    for step in copy_steps(Prefetched(step.pin_memory() if pinned else step for step in steps), device):
        yield step.micro_batches[0]
