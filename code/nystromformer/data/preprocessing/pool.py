"""Independent units of work in processes: the first error, and no process left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, TypeVar

from nystromformer.errors import UserError

Result = TypeVar("Result")

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
    stopped: Any = context.RawValue(ctypes.c_bool, False)
    pool = ProcessPoolExecutor(min(workers, len(works)), context, _begin_worker, (stopped,))
    try:
        # Ctrl-C goes to the whole group of processes: workers, which begin here, do not hear it, and are told to stop
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = deque(pool.submit(_run, work) for work in works)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for index in range(len(works)):
            # not held on to: all results together may be larger than the memory
            result, done = futures.popleft().result()
            progress(*done)
            yield index, result
            del result
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended abruptly: it was killed, most often because memory ran out. "
            "Give fewer --workers; started again, the same command continues where it stopped."
        ) from error
    finally:
        stopped.value = True
        pool.shutdown(cancel_futures=True)


_stopped: Any = None
"""In shared memory of a worker and its parent: whether all shall stop."""


def _begin_worker(stopped: Any) -> None:
    global _stopped
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    end_with_parent()
    _stopped = stopped


def _run(work: Work[Result]) -> tuple[Result, tuple[int, int]]:
    """A unit's result, and what it reported in all."""
    sizes, tokens = [0], [0]

    def report(size: int, made: int) -> None:
        sizes[0] += size
        tokens[0] += made
        if _stopped.value:
            raise Stopped

    report(0, 0)
    result = work(report)
    return result, (sizes[0], tokens[0])


def end_with_parent() -> None:
    """End this worker when its parent was killed: it would wait for work for ever."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
