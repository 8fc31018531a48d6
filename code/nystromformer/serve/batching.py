"""Requests that come at the same time, computed together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Full(Exception):
    """As many requests wait as may."""


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    text: str
    future: "asyncio.Future[T]"


class Batcher(Generic[T]):
    """`await batcher(text)`: the work's result, of whatever texts were waiting together.

    Args:
        work: from texts to results, in a thread; not called twice at once.
        together: texts of one call, at most.
        waiting: requests that may wait; a further one is refused.
    """

    def __init__(self, work: Callable[[Sequence[str]], Sequence[T]], together: int, waiting: int) -> None:
        self._work, self._together, self._most = work, together, waiting
        self._waiting: deque[_Waiting[T]] = deque()
        self._arrived = asyncio.Event()
        # One thread: PyTorch's own threads share the cores.
        self._thread = ThreadPoolExecutor(1)

    async def __call__(self, text: str) -> T:
        """The result of one text.

        Raises:
            Full: too many wait.
            Exception: what the work raised of it.
        """
        if len(self._waiting) >= self._most:
            raise Full
        one = _Waiting(text, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._arrived.set()
        result: T = await one.future
        return result

    async def alone(self, work: Callable[[], R]) -> R:
        """Other work in the same thread, between two batches."""
        waiting: Awaitable[R] = asyncio.get_running_loop().run_in_executor(self._thread, work)
        return await waiting

    async def run(self) -> None:
        """Compute what comes, until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._next()
            if not batch:
                self._arrived.clear()
                continue
            await self._compute(batch)

    def _next(self) -> list[_Waiting[T]]:
        """Without those whose clients have gone."""
        batch: list[_Waiting[T]] = []
        while self._waiting and len(batch) < self._together:
            one = self._waiting.popleft()
            if not one.future.done():
                batch.append(one)
        return batch

    async def _compute(self, batch: list[_Waiting[T]]) -> None:
        results = await self._attempt([one.text for one in batch])
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

    async def _attempt(self, texts: list[str]) -> Sequence[T] | Exception:
        loop = asyncio.get_running_loop()
        waiting: Awaitable[Sequence[T]] = loop.run_in_executor(self._thread, self._work, texts)
        try:
            return await waiting
        except Exception as error:
            return error
