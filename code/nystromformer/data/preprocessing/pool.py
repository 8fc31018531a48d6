"""Independent units of work in processes: progress from inside a unit, the first error, and no process left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.context import SpawnContext
from typing import Any, TypeVar

from nystromformer.errors import UserError

Result = TypeVar("Result")
_SECONDS_BETWEEN_LOOKS = 0.25

Report = Callable[[int, int], object]
"""What a unit calls every so often, with what was done since the call before: bytes read, and tokens or words made."""
Work = Callable[[Report], Result]
"""A unit of work; it pickles."""


class Stopped(Exception):
    """Raised by `Report` in a unit whose result nobody waits for any more."""


def run_works(
    works: Sequence[Work[Result]], workers: int, progress: Report
) -> Generator[tuple[int, Result], None, None]:
    """Do independent units of work, in this process where `workers` is 1.

    Where several units fail, the error is that of the first of them in the order of `works`, whatever the timing. Close
    the generator to stop what is running: a unit stops when it reports next.

    Yields:
        Index and result of each unit, in the order of `works`.

    Raises:
        UserError: a process was killed; and whatever a unit raises.
    """
    if workers == 1 or len(works) <= 1:
        for index, work in enumerate(works):
            yield index, work(progress)
        return
    # spawned, not forked: the tokenizers library's threads do not survive a fork
    context = get_context("spawn")
    workers = min(workers, len(works))
    board = _Board(context, workers)
    pool = ProcessPoolExecutor(workers, context, _begin_worker, (board,))
    try:
        # Ctrl-C goes to the whole group of processes: workers, which begin here, do not hear it, and are told to stop
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = deque(pool.submit(_run, work) for work in works)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for index in range(len(works)):
            while not futures[0].done():
                wait([futures[0]], _SECONDS_BETWEEN_LOOKS)
                progress(*board.news())
            # not held on to: all results together may be larger than the memory
            result = futures.popleft().result()
            if isinstance(result, _Failed):
                raise result.error from None if result.reason is None else OSError(result.reason)
            yield index, result
            del result
        progress(*board.news())
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended abruptly: it was killed, most often because memory ran out. "
            "Give fewer --workers; started again, the same command continues where it stopped."
        ) from error
    finally:
        board.stopped.value = True
        pool.shutdown(cancel_futures=True)


class _Board:
    """In shared memory: bytes and tokens that each worker has done, which it alone writes, and whether all shall stop.

    No lock is held to report: a worker that was killed with it would halt all others.
    """

    def __init__(self, context: SpawnContext, workers: int) -> None:
        self.stopped: Any = context.RawValue(ctypes.c_bool, False)
        self._counts: Any = context.RawArray(ctypes.c_longlong, 2 * workers)
        self._seats: Any = context.Value(ctypes.c_longlong, 0)
        self._seat = 0
        self._seen = (0, 0)

    def take_seat(self) -> None:
        """Give this worker a pair of counters of its own."""
        with self._seats:
            self._seat = 2 * self._seats.value
            self._seats.value += 1

    def report(self, size: int, tokens: int) -> None:
        self._counts[self._seat] += size
        self._counts[self._seat + 1] += tokens
        if self.stopped.value:
            raise Stopped

    def news(self) -> tuple[int, int]:
        """Size and tokens that all workers did since the call before."""
        (size_before, tokens_before), self._seen = self._seen, (sum(self._counts[0::2]), sum(self._counts[1::2]))
        return self._seen[0] - size_before, self._seen[1] - tokens_before


_board: _Board | None = None


def _begin_worker(board: _Board) -> None:
    global _board
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    end_with_parent()
    board.take_seat()
    _board = board


@dataclass(frozen=True)
class _Failed:
    """A unit that ended by a mistake or, for a reason, by an error of the system, which pickling would take from it."""

    error: UserError
    reason: str | None


def _run(work: Work[Result]) -> Result | _Failed:
    assert _board is not None, "the worker was begun"
    _board.report(0, 0)
    try:
        return work(_board.report)
    except UserError as error:
        return _Failed(error, str(error.__cause__) if isinstance(error.__cause__, OSError) else None)


def end_with_parent() -> None:
    """End this worker when its parent was killed: it would wait for work for ever."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
