"""Works in processes of their own: what fails, takes the device down or never ends costs itself alone."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nystromformer.benchmark.findings import Record

logger = logging.getLogger(__name__)

Work = Callable[[], list[Record]]
"""It pickles."""
Outcome = Mapping[str, Any]
"""What became of a work: its `records`, or a text why it `failed` or was `left_out`."""


class LeftOut(Exception):
    """Why something is not measured here."""


def run_works(works: Mapping[str, Work], processes: int, until: float) -> Iterator[tuple[str, Outcome]]:
    """The works' outcomes by their titles, in order.

    Args:
        processes: side by side, one for each work, because after a kernel's illegal access everything fails until the
            process ends; 0: all in this one.
        until: on the monotonic clock: what has not ended by then is left out.
    """
    late = {"left_out": "it did not end within the time limit"}
    if not processes:
        for title, work in works.items():
            yield title, _attempt(work) if time.monotonic() < until else late
        return
    # A process that is forked could not use the device.
    with multiprocessing.get_context("spawn").Pool(processes, _begin_process, maxtasksperchild=1) as pool:
        results = {title: pool.apply_async(_attempt, (work,)) for title, work in works.items()}
        for title, result in results.items():
            try:
                yield title, result.get(max(0.0, until - time.monotonic()))
            except multiprocessing.TimeoutError:
                yield title, late


def _begin_process() -> None:
    # Ctrl-C reaches every process of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Several compile at once, by default with as many processes each as there are cores.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")


def _attempt(work: Work) -> Outcome:
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
