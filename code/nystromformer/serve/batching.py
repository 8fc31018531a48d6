"""Requests that come at the same time, computed together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

FULL = "too many requests wait: try again in a moment"

T = TypeVar("T")
R = TypeVar("R")


class Full(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True)
class _Waiting:
    """A text, or work of its own."""

    asked: str | Callable[[], Any]
    future: "asyncio.Future[Any]"


class Batcher(Generic[T]):
    """`await batcher(text)`: the work's result, of whatever texts were waiting together.

    Args:
        work: from texts to results, in a thread; not called twice at once.
        together: texts of one call, at most.
        waiting: requests that may wait; a further one is refused.
    """

    def __init__(self, work: Callable[[Sequence[str]], Sequence[T]], together: int, waiting: int) -> None:
        self._work, self._together, self._most = work, together, waiting
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        # One thread: PyTorch's own threads share the cores.
        self._thread = ThreadPoolExecutor(1)
        self._runs = False

    @property
    def waiting(self) -> int:
        """Requests that wait and whose clients have not gone."""
        return sum(not one.future.done() for one in self._waiting)

    @property
    def obstacle(self) -> str | None:
        """Why a request would not be computed now; None where it would."""
        if not self._runs:
            return "the service is stopping"
        return FULL if self.waiting >= self._most else None

    async def __call__(self, text: str) -> T:
        """The result of one text.

        Raises:
            Full: too many wait.
            Exception: what the work raised of it.
        """
        result: T = await self._queued(text)
        return result

    async def alone(self, work: Callable[[], R]) -> R:
        """The result of other work, which is done in the same thread when its turn comes.

        Raises:
            Full: too many wait.
            Exception: what the work raised.
        """
        result: R = await self._queued(work)
        return result

    def _queued(self, asked: str | Callable[[], Any]) -> "asyncio.Future[Any]":
        # Of those whose clients have gone nothing is waited for.
        if len(self._waiting) >= self._most:
            self._waiting = deque(one for one in self._waiting if not one.future.done())
        if len(self._waiting) >= self._most:
            raise Full
        one = _Waiting(asked, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._arrived.set()
        return one.future

    async def run(self) -> None:
        """Compute what comes, until cancelled."""
        self._runs = True
        try:
            while True:
                await self._arrived.wait()
                batch = self._next()
                if not batch:
                    self._arrived.clear()
                    continue
                await self._compute(batch)
        finally:
            self._runs = False

    def _next(self) -> list[_Waiting]:
        """Texts, or one work of its own, without those whose clients have gone."""
        batch: list[_Waiting] = []
        while self._waiting and len(batch) < self._together:
            if batch and callable(self._waiting[0].asked):
                break
            one = self._waiting.popleft()
            if one.future.done():
                continue
            batch.append(one)
            if callable(one.asked):
                break
        return batch

    async def _compute(self, batch: list[_Waiting]) -> None:
        results = await self._attempt([one.asked for one in batch])
        if isinstance(results, Exception) and len(batch) > 1:
            # One text's fault is not the others': each by itself.
            for one in batch:
                await self._compute([one])
            return
        for number, one in enumerate(batch):
            if one.future.done():
                continue
            if isinstance(results, Exception):
                one.future.set_exception(results)
            else:
                one.future.set_result(results[number])

    async def _attempt(self, asked: list[Any]) -> Sequence[Any] | Exception:
        own = asked[0] if callable(asked[0]) else None
        work = partial(self._work, asked) if own is None else lambda: [own()]
        waiting: Awaitable[Sequence[Any]] = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await waiting
        except Exception as error:
            return error
