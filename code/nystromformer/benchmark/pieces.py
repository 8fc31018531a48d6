"""A measurement piece by piece, in this process or in others: what fails, takes the device down or never ends costs
itself alone.
"""

import gc
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

logger = logging.getLogger(__name__)

MEASURED, FAILED, LEFT_OUT = "measured", "failed", "left out"
GRACE = 10.0
"""Seconds past its section's end after which a running piece is stopped."""


@dataclass(frozen=True)
class Piece:
    """A part of a measurement: a process of its own can do it."""

    section: str
    title: str
    seconds: float
    """What it takes about: with less time left it is not begun."""
    work: Callable[..., Sequence[Any]]
    """Of the settings and of `arguments`: rows, each a dataclass."""
    arguments: tuple[Any, ...] = ()


class LeftOut(Exception):
    """Why a piece is not measured: something is not there, or would take too long."""


@dataclass(frozen=True)
class Outcome:
    """What became of a piece."""

    section: str
    title: str
    status: str
    """MEASURED, FAILED or LEFT_OUT."""
    reason: str = ""
    """Why it failed or was left out."""
    seconds: float = 0.0
    rows: Sequence[Any] = ()

    def __str__(self) -> str:
        return f"{self.section}, {self.title}: {self.status} {self.reason} ({self.seconds:.1f} s)"


SecondsLeft = Callable[[str], float]
"""Seconds until a section must end."""


def measure_here(pieces: Sequence[Piece], settings: Any, seconds_left: SecondsLeft) -> Iterator[Outcome]:
    """The pieces in this process, one after another."""
    for piece in pieces:
        yield _refuse(piece, seconds_left) or _measure(piece, settings)


def measure_in_processes(
    pieces: Sequence[Piece], settings: Any, count: int, seconds_left: SecondsLeft = lambda section: math.inf
) -> Iterator[Outcome]:
    """The pieces in `count` processes, begun in order; outcomes as they come."""
    waiting = deque(pieces)
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Piece]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                piece = waiting.popleft()
                if (refused := _refuse(piece, seconds_left)) is not None:
                    yield refused
                    continue
                worker = idle.pop() if idle else _Worker(settings)
                worker.connection.send(piece)
                busy[worker.connection] = worker, piece
            if not busy:
                break
            limit = min(seconds_left(piece.section) + GRACE for _, piece in busy.values())
            ready = wait(list(busy), None if limit == math.inf else max(0.0, limit))
            for connection, (worker, piece) in list(busy.items()):
                if connection in ready:
                    outcome = worker.answer(piece)
                elif not ready and seconds_left(piece.section) + GRACE <= 0:
                    outcome = Outcome(piece.section, piece.title, FAILED, "stopped: its section's time was over")
                else:
                    continue
                del busy[connection]
                # After a kernel's illegal access everything fails until the process ends.
                if outcome.status == FAILED:
                    worker.end()
                else:
                    idle.append(worker)
                yield outcome
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


class _Worker:
    """A process that measures one piece after another."""

    def __init__(self, settings: Any) -> None:
        # Of a process that compiles layers; by default as many as there are cores, and several compile at once.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        # A process that is forked could not use the device.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, settings))
        self._process.start()
        theirs.close()

    def answer(self, piece: Piece) -> Outcome:
        """The piece's outcome, also where the process died."""
        try:
            outcome: Outcome = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            reason = f"its process ended with status {self._process.exitcode}"
            return Outcome(piece.section, piece.title, FAILED, reason)
        return outcome

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, settings: Any) -> None:
    """Measure what comes until nothing can come any more."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Ctrl-C reaches every process of a terminal: the first one ends the others, and none outlives it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            connection.send(_measure(connection.recv(), settings))
    except (EOFError, OSError):
        return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _measure(piece: Piece, settings: Any) -> Outcome:
    """The piece's outcome, whatever happens within it."""
    begin = time.perf_counter()
    status, reason = MEASURED, ""
    rows: Sequence[Any] = ()
    try:
        rows = piece.work(settings, *piece.arguments)
    except LeftOut as left_out:
        status, reason = LEFT_OUT, str(left_out)
    except Exception as error:
        # Whatever it is, the others are worth their time; the outcome names it and the command fails at its end.
        logger.info("%s, %s", piece.section, piece.title, exc_info=True)
        status, reason = FAILED, describe_error(error)
    gc.collect()
    return Outcome(piece.section, piece.title, status, reason, time.perf_counter() - begin, rows)


def _refuse(piece: Piece, seconds_left: SecondsLeft) -> Outcome | None:
    """What stands for a piece that is not begun; None where there is time for it."""
    left = seconds_left(piece.section)
    if left >= piece.seconds:
        return None
    reason = f"of {piece.section}'s time {max(0.0, left):.0f} s are left, this takes about {piece.seconds:.0f} s"
    return Outcome(piece.section, piece.title, LEFT_OUT, f"the time limit: {reason}")


def describe_error(error: Exception) -> str:
    """One line: a compiler's message says at its end what an error of the device says first."""
    lines = [line.strip()[:200] for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' ... '.join(dict.fromkeys([*lines[:1], *lines[-1:]]))}"
