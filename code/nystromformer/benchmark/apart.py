"""Measurements in processes of their own, until a time: what fails, takes the device down or never ends costs itself
alone.
"""

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from nystromformer.benchmark.findings import Record

logger = logging.getLogger(__name__)

Work = Callable[[], list[Record]]
"""It pickles."""
_LATE = {"left_out": "it did not end within the time limit"}


class LeftOut(Exception):
    """Why something is not measured here."""


def run_works(works: Mapping[str, Work], processes: int, until: float) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What became of the works by their titles, in order: `records`, or a text why it `failed` or was `left_out`, as is
    what has not ended by `until`. So many processes run side by side, one for each work, because after a kernel's
    illegal access everything fails until the process ends; 0: all in this one.
    """

    def attempt(work: Work) -> Mapping[str, Any]:
        if time.monotonic() >= until:
            return _LATE
        return _alone(work, until) if processes else _attempt(work)

    if not processes:
        yield from zip(works, map(attempt, works.values()), strict=True)
        return
    with ThreadPoolExecutor(processes) as threads:
        try:
            yield from zip(works, threads.map(attempt, works.values()), strict=True)
        finally:
            # Ctrl-C: no thread waits for its process until the time is up.
            for process in multiprocessing.active_children():
                process.kill()


def _alone(work: Work, until: float) -> Mapping[str, Any]:
    # A process that is forked could not use the device.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(max(0.0, until - time.monotonic())) else _LATE
    except EOFError:
        process.join()
        return {"failed": f"its process ended with exit status {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _send(work: Work, to: Connection) -> None:
    # Ctrl-C reaches every process: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    to.send(_attempt(work))


def _attempt(work: Work) -> Mapping[str, Any]:
    try:
        return {"records": work()}
    except LeftOut as reason:
        return {"left_out": str(reason)}
    except Exception as error:
        # Whatever it is, the others are worth their time; the outcome names it and the command fails at its end.
        logger.info("it failed", exc_info=True)
        # A compiler's message says at its end what an error of the device says first.
        lines = [line.strip()[:200] for line in str(error).splitlines() if line.strip()]
        return {"failed": f"{type(error).__name__}: {' ... '.join(dict.fromkeys([*lines[:1], *lines[-1:]]))}"}
