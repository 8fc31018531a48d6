"""Preparing ahead in a thread: the next steps are made while this one is computed."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_END = object()


@dataclass(frozen=True)
class _Failure:
    error: BaseException


class Prefetched(Generic[T]):
    """An iterable whose items a thread makes up to `ahead` before they are asked for.

    What making an item raises is raised where that item is asked for. Leaving the loop early ends the thread.
    """

    def __init__(self, items: Iterable[T], ahead: int = 2) -> None:
        self._items = items
        self._ahead = ahead

    def __iter__(self) -> Iterator[T]:
        made: queue.Queue[object] = queue.Queue(self._ahead)
        left = threading.Event()
        thread = threading.Thread(target=self._make, args=(made, left), name="prefetch", daemon=True)
        thread.start()
        try:
            while (item := made.get()) is not _END:
                if isinstance(item, _Failure):
                    raise item.error
                yield item  # type: ignore[misc]  # the queue holds items beside the two marks
        finally:
            left.set()
            thread.join()

    def _make(self, made: queue.Queue[object], left: threading.Event) -> None:
        try:
            for item in self._items:
                if not _put(made, item, left):
                    return
            _put(made, _END, left)
        except BaseException as error:
            _put(made, _Failure(error), left)


def _put(made: queue.Queue[object], item: object, left: threading.Event) -> bool:
    """Wait for a place in the queue; False once nobody asks any more."""
    while not left.is_set():
        try:
            made.put(item, timeout=0.05)
        except queue.Full:
            continue
        return True
    return False
