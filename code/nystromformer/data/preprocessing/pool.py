"""Independent units of work in processes: progress from inside a unit, the first error, and no process left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.context import SpawnContext
from typing import Any, Protocol, TypeVar

from nystromformer.errors import UserError

Result = TypeVar("Result")
_Gives = TypeVar("_Gives", covariant=True)
_SECONDS_BETWEEN_LOOKS = 0.25


class Report(Protocol):
    """What a unit calls every so often, with what was done since the call before: bytes read, tokens or words made."""

    def __call__(self, size: int, tokens: int = 0) -> None: ...


class Work(Protocol[_Gives]):
    """A unit of work; it pickles."""

    def __call__(self, report: Report) -> _Gives: ...


class Stopped(Exception):
    """Raised by `Report` in a unit whose result nobody waits for any more."""


def run_works(
    works: Sequence[Work[Result]], workers: int, progress: Report
) -> Generator[tuple[int, Result], None, None]:
    """Do independent units of work, in this process where `workers` is 1.

    Where several units fail, the error is that of the first of them in the order of `works`, whatever the timing; where
    a process was killed besides, that of the first that is known. Close the generator to stop what is running: a unit
    stops when it reports next.

    Yields:
        Index and result of each unit, as they are finished.

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
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_worker, initargs=(board,))
    try:
        yield from _results(_submit(pool, works), board, progress)
    except BaseException:
        board.last.value = -1
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, works: Sequence[Work[Result]]) -> dict[Future[Result], int]:
    with born_deaf():
        return {pool.submit(_run, index, work): index for index, work in enumerate(works)}


@contextmanager
def born_deaf() -> Iterator[None]:
    """Ctrl-C goes to the whole group of processes: workers that begin within the block do not hear it, and stop when
    they are told to.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _results(
    futures: dict[Future[Result], int], board: _Board, progress: Report
) -> Generator[tuple[int, Result], None, None]:
    waiting: set[Future[Result]] = set(futures)
    errors: dict[int, BaseException] = {}
    while waiting:
        done, waiting = wait(waiting, _SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
        progress(*board.news())
        broken: BrokenProcessPool | None = None
        for future in sorted(done, key=futures.__getitem__):
            if future.cancelled():
                continue
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                broken = error
            elif error is None:
                yield futures[future], future.result()
            elif not isinstance(error, Stopped):
                errors[futures[future]] = error
        if broken is not None and not errors:
            raise UserError(
                "a worker process ended abruptly: it was killed, most often because memory ran out. "
                "Give fewer --workers; started again, the same command continues where it stopped."
            ) from broken
        if broken is not None:
            break
        if errors:
            # units before the first one that failed go on, as they may fail too
            board.last.value = min(errors)
            for future in waiting:
                future.cancel()
    if errors:
        raise errors[min(errors)]


class _Board:
    """Counters in shared memory: a pair for each worker, which it alone writes, and the last unit that shall go on."""

    def __init__(self, context: SpawnContext, workers: int) -> None:
        self.last: Any = context.RawValue(ctypes.c_longlong, sys.maxsize)
        self._counts: Any = context.RawArray(ctypes.c_longlong, 2 * workers)
        self._seats: Any = context.Value(ctypes.c_longlong, 0)
        self._seen = (0, 0)

    def seat(self) -> int:
        """A worker's own place."""
        with self._seats.get_lock():
            self._seats.value += 1
            return int(self._seats.value) - 1

    def add(self, seat: int, size: int, tokens: int) -> None:
        self._counts[2 * seat] += size
        self._counts[2 * seat + 1] += tokens

    def news(self) -> tuple[int, int]:
        """Size and tokens that all workers did since the call before."""
        now = sum(self._counts[0::2]), sum(self._counts[1::2])
        before, self._seen = self._seen, now
        return now[0] - before[0], now[1] - before[1]


class _WorkerReport:
    def __init__(self, board: _Board) -> None:
        self.unit = 0
        self._board = board
        self._seat = board.seat()

    def __call__(self, size: int, tokens: int = 0) -> None:
        self._board.add(self._seat, size, tokens)
        if self.unit > self._board.last.value:
            raise Stopped


_report: _WorkerReport | None = None


def _begin_worker(board: _Board) -> None:
    global _report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    end_with_parent()
    _report = _WorkerReport(board)


def _run(index: int, work: Work[Result]) -> Result:
    assert _report is not None, "the worker was begun"
    _report.unit = index
    _report(0)
    return work(_report)


def end_with_parent() -> None:
    """End this worker when its parent was killed: it would wait for work for ever."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
