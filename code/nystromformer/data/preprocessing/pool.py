"""Independent parts of a command's work in processes: the first error, and no process left behind."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.parts import Part, Parts
from nystromformer.files.writing import FileStamp
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

Result = TypeVar("Result")

Report = Callable[[int, int], object]
"""What work calls every so often, with what was done since the call before: bytes read, and tokens or words made."""
Work = Callable[[Report], Result]
"""It pickles."""
Made = tuple[Mapping[Path, FileStamp], Mapping[str, Any]]
"""A part's files and figures, as `Parts.add` takes them."""


@dataclass(frozen=True)
class Unit:
    """A part to make.

    size: bytes of text that it reads, by which progress is shown.
    work: writes its files under their final names.
    """

    name: str
    size: int
    work: Work[Made]


def make_parts(
    parts: Parts,
    units: Sequence[Unit],
    workers: int,
    label: str,
    share: slice | None = None,
    counted: str = "tokens",
    verify: bool = False,
) -> dict[str, Part]:
    """Make the parts that are not finished yet; gives all of them by name, in the units' order.

    Args:
        share: of the units, that an array job does, beside others that have the folder; None: all.
        counted: what they report besides bytes.
        verify: as of `Parts.find`.

    Raises:
        UserError: what a unit raises, another process is at one of them, or a worker process was killed.
    """
    mine = units[share or slice(None)]
    made = {unit.name: parts.find(unit.name, verify) for unit in mine}
    missing = [unit for unit in mine if made[unit.name] is None]
    total, left = (sum(unit.size for unit in some) for some in (mine, missing))
    if len(missing) < len(mine):
        log.info("%s: %d of %s already finished", label, len(mine) - len(missing), number_of(len(mine), "part"))
    if missing:
        works = [partial(_make, parts, unit, share is not None) for unit in missing]
        with (
            reading_progress(label, total, total - left, counted) as progress,
            closing(run_works(works, workers, progress)) as results,
        ):
            for index, part in results:
                made[missing[index].name] = part
    if share is not None:
        log.info(
            "array index %d of %d: %d of %s done", *(share.start, share.step, len(mine)), number_of(len(units), "part")
        )
    return {name: part for name, part in made.items() if part is not None}


def _make(parts: Parts, unit: Unit, is_shared: bool, report: Report) -> Part:
    with parts.alone(unit.name) if is_shared else nullcontext():
        return (parts.find(unit.name) if is_shared else None) or parts.add(unit.name, *unit.work(report))


@contextmanager
def reading_progress(label: str, total: int, done: int = 0, counted: str = "tokens") -> Iterator[Report]:
    """A bar of the bytes that were read; in a log a line a minute.

    Args:
        total: bytes in all; 0 where that is not known.
        done: bytes that an earlier start has read.
        counted: what is reported besides bytes: tokens or words.
    """
    made = 0
    seconds = 0.1 if sys.stderr.isatty() else 60
    limits = {"mininterval": seconds, "maxinterval": max(seconds, 10)}
    with tqdm(desc=label, total=total or None, initial=done, unit="B", unit_scale=True, **limits) as bar:

        def report(size: int, more: int) -> None:
            nonlocal made
            made += more
            bar.set_postfix_str(f"{made:,} {counted}", refresh=False)
            bar.update(size)

        yield report


class Stopped(Exception):
    """Raised by `Report` in work whose result nobody waits for any more."""


def run_works(
    works: Sequence[Work[Result]], workers: int, progress: Report
) -> Generator[tuple[int, Result], None, None]:
    """Do independent works, in this process where `workers` is 1.

    Where several fail, the error is that of the first of them in the order of `works`, whatever the timing. Close the
    generator to stop what is running: work stops when it reports next.

    Yields:
        Index and result of each, in the order of `works`.

    Raises:
        UserError: a process was killed; and whatever a work raises.
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
    """A work's result, and what it reported in all."""
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
