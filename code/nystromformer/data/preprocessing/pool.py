"""Independent parts of a command's work in processes: the first error, and no process left behind."""

from __future__ import annotations

import logging
import operator
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.parts import Part, Parts
from nystromformer.files.writing import FileStamp
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

Result = TypeVar("Result")

Work = Callable[[], Result]
"""It pickles."""
Made = tuple[Mapping[Path, FileStamp], Mapping[str, Any]]
"""A part's files, which have their final names, and figures, as `Parts.add` takes them."""


def make_parts(
    parts: Parts, works: Mapping[str, Work[Made]], workers: int, label: str, share: slice | None = None
) -> dict[str, Part]:
    """Make the parts that are not finished yet; gives all of them by name, in the order of `works`.

    Args:
        share: of the parts, that an array job makes, beside others that have the folder; None: all.
    """
    mine = list(works)[share or slice(None)]
    found = {name: parts.find(name, verify=True) for name in mine}
    made = {name: part for name, part in found.items() if part is not None}
    missing = [name for name in mine if name not in made]
    todo = [partial(_make, parts, name, works[name], share is not None) for name in missing]
    with progress_bar(label, "part", len(mine), len(made)) as bar, closing(run_works(todo, workers)) as results:
        for name, part in zip(missing, results, strict=True):
            made[name] = part
            bar.update()
    if share is not None:
        done = number_of(len(works), "part")
        log.info("array index %d of %d: %d of %s done", share.start, share.step, len(mine), done)
    return {name: made[name] for name in mine}


def progress_bar(label: str, unit: str, total: int, done: int = 0) -> Any:
    """A tqdm bar, with a line a minute where nobody watches; none where at most a single piece is left."""
    seconds = 0.1 if sys.stderr.isatty() else 60
    limits = {"mininterval": seconds, "maxinterval": max(seconds, 10)}
    return tqdm(desc=label, total=total, initial=done, unit=unit, disable=total == 1 or done == total, **limits)


def _make(parts: Parts, name: str, work: Work[Made], is_shared: bool) -> Part:
    with parts.alone(name) if is_shared else nullcontext():
        return (parts.find(name) if is_shared else None) or parts.add(name, *work())


def run_works(works: Sequence[Work[Result]], workers: int) -> Generator[Result, None, None]:
    """The results of independent works, in their order; done in this process where `workers` is 1.

    Where several fail, the error is that of the first of them, whatever the timing. Close the generator to stop what is
    running.
    """
    if workers == 1 or len(works) <= 1:
        yield from (work() for work in works)
        return
    # spawned, not forked: the tokenizers library's threads do not survive a fork
    pool = ProcessPoolExecutor(min(workers, len(works)), get_context("spawn"), _begin_worker)
    try:
        # Ctrl-C goes to the whole group of processes: workers, which begin here and keep the mask, do not hear it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = pool.map(operator.call, works)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield from results
        pool.shutdown()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended abruptly: it was killed, most often because memory ran out. "
            "Give fewer --workers; started again, the same command continues where it stopped."
        ) from error
    finally:
        for process in active_children():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def end_with_the_first() -> None:
        if (first := parent_process()) is not None:
            first.join()
        os._exit(1)

    threading.Thread(target=end_with_the_first, daemon=True).start()
