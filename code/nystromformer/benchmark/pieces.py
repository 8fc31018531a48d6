"""A measurement piece by piece, in this process or in others: what fails, takes the device down or never ends costs
itself alone.
"""

import gc
import logging
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from nystromformer.benchmark.findings import Record
from nystromformer.command_line.checked_command import with_own_attentions_registered

logger = logging.getLogger(__name__)

GRACE = 10.0
"""Seconds past its end after which a running piece is stopped."""


@dataclass(frozen=True)
class Piece:
    """A part of a measurement, which a process of its own can do."""

    title: str
    work: Callable[[], list[Record]]
    seconds: float = 0.0
    """What it takes about: with less time left it is not begun."""


class LeftOut(Exception):
    """Why a piece is not measured: something is not there, or would take too long."""


@dataclass(frozen=True)
class Outcome:
    """What became of a piece; two texts, of which one or none is there."""

    title: str
    records: list[Record] = field(default_factory=list)
    failed: str = ""
    left_out: str = ""


def run_pieces(pieces: Sequence[Piece], processes: int, until: float = math.inf) -> Iterator[Outcome]:
    """The pieces, begun in order; outcomes as they come.

    Args:
        processes: side by side; 0: in this one.
        until: on the monotonic clock: a piece that would end later is left out.
    """
    waiting, idle = deque(pieces), list[_Worker]()
    busy: dict[Connection, tuple[_Worker, Piece]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < max(1, processes):
                piece = waiting.popleft()
                if (left := until - time.monotonic()) < piece.seconds:
                    limit = f"the time limit: {max(0.0, left):.0f} s are left, this takes about {piece.seconds:.0f} s"
                    yield Outcome(piece.title, left_out=limit)
                elif not processes:
                    yield _measure(piece)
                else:
                    worker = idle.pop() if idle else _Worker()
                    worker.connection.send(piece)
                    busy[worker.connection] = worker, piece
            if not busy:
                continue
            seconds = None if until == math.inf else max(0.0, until + GRACE - time.monotonic())
            ready: list[Any] = wait(list(busy), seconds)
            for connection in ready or list(busy):
                worker, piece = busy.pop(connection)
                try:
                    outcome = connection.recv() if ready else Outcome(piece.title, failed="stopped: the time was over")
                except (EOFError, OSError):
                    worker.process.join(5)
                    outcome = Outcome(piece.title, failed=f"its process ended with status {worker.process.exitcode}")
                # After a kernel's illegal access everything fails until the process ends.
                worker.end() if outcome.failed else idle.append(worker)
                yield outcome
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


class _Worker:
    """A process that measures one piece after another."""

    def __init__(self) -> None:
        # Of a process that compiles layers; by default as many as there are cores, and several compile at once.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        # A process that is forked could not use the device.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection: Connection) -> None:
    """Measure what comes until nothing can come any more."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Ctrl-C reaches every process of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What the command was given: a process that is spawned has its words, too.
    with_own_attentions_registered(sys.argv[1:], is_flag=True)
    try:
        while True:
            connection.send(_measure(connection.recv()))
    except (EOFError, BrokenPipeError):
        return


def _measure(piece: Piece) -> Outcome:
    """The piece's outcome, whatever happens within it."""
    try:
        return Outcome(piece.title, piece.work())
    except LeftOut as reason:
        return Outcome(piece.title, left_out=str(reason))
    except Exception as error:
        # Whatever it is, the others are worth their time; the outcome names it and the command fails at its end.
        logger.info("%s", piece.title, exc_info=True)
        # A compiler's message says at its end what an error of the device says first.
        lines = [line.strip()[:200] for line in str(error).splitlines() if line.strip()]
        shown = " ... ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))
        return Outcome(piece.title, failed=f"{type(error).__name__}: {shown}")
    finally:
        gc.collect()
