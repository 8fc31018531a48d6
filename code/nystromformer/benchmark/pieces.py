"""A measurement piece by piece, in this process or in others: what fails, takes the device down or never ends costs
itself alone.
"""

import gc
import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from nystromformer.data.preprocessing.pool import end_with_parent

logger = logging.getLogger(__name__)

T = TypeVar("T")

MEASURED, FAILED, LEFT_OUT = "measured", "failed", "left out"


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
    """Why something within a piece is not measured: it is not there, or would take too long."""


@dataclass(frozen=True)
class NoFigure:
    """Why something within a piece has no figure; stands among its rows."""

    name: str
    reason: str
    failed: bool
    """False where it was left out."""
    is_memory: bool = False
    """Whether there was too little memory."""


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
    rows: Sequence[Any] = field(default_factory=tuple)

    def __str__(self) -> str:
        reason = f" {self.reason}" if self.reason else ""
        return f"{self.section}, {self.title}: {self.status}{reason} ({self.seconds:.1f} s)"


Refusal = Callable[[Piece], str | None]
"""Why a piece is not begun, asked when it would be; None where it is."""


def measure_here(pieces: Sequence[Piece], settings: Any, refusal: Refusal) -> Iterator[Outcome]:
    """The pieces in this process, one after another."""
    for piece in pieces:
        reason = refusal(piece)
        yield measure_piece(piece, settings) if reason is None else _without_rows(piece, LEFT_OUT, reason)


def measure_in_processes(
    pieces: Sequence[Piece],
    settings: Any,
    count: int,
    refusal: Refusal = lambda piece: None,
    until_stopped: Callable[[str], float] | None = None,
) -> Iterator[Outcome]:
    """The pieces in `count` processes, begun in order; outcomes as they come.

    Args:
        until_stopped: seconds until pieces of a section must end; None: there is no limit.
    """
    waiting = deque(pieces)
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Piece]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                piece = waiting.popleft()
                if (reason := refusal(piece)) is not None:
                    yield _without_rows(piece, LEFT_OUT, reason)
                    continue
                worker = idle.pop() if idle else _Worker(settings)
                worker.connection.send(piece)
                busy[worker.connection] = worker, piece
            limits = [] if until_stopped is None else [until_stopped(piece.section) for _, piece in busy.values()]
            ready = wait(list(busy), timeout=min(limits, default=None)) if busy else []
            for connection, (worker, piece) in list(busy.items()):
                if connection in ready:
                    outcome, is_usable = worker.answer(piece)
                elif not ready and until_stopped is not None and not until_stopped(piece.section):
                    outcome, is_usable = _without_rows(piece, FAILED, "stopped: its section's time was over"), False
                else:
                    continue
                del busy[connection]
                if is_usable:
                    idle.append(worker)
                else:
                    worker.end()
                yield outcome
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.end()


class _Worker:
    """A process that measures one piece after another, until it ends or has lost the device."""

    def __init__(self, settings: Any) -> None:
        # Of a process that compiles layers; by default as many as there are cores, and several compile at once.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        # A process that is forked could not use the device.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, settings))
        self._process.start()
        theirs.close()

    def answer(self, piece: Piece) -> tuple[Outcome, bool]:
        """The piece's outcome, and whether the process can take another one."""
        try:
            answer: tuple[Outcome, bool] = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return _without_rows(piece, FAILED, f"its process ended with status {self._process.exitcode}"), False
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _serve(connection: Connection, settings: Any) -> None:
    """Measure what comes until nothing can come any more."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Ctrl-C reaches every process of a terminal: the first one ends the others, and none outlives it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    try:
        while True:
            outcome = measure_piece(connection.recv(), settings)
            connection.send((outcome, device_answers()))
    except (EOFError, OSError):
        return


def measure_piece(piece: Piece, settings: Any) -> Outcome:
    """The piece's outcome, whatever happens within it."""
    begin = time.perf_counter()
    try:
        rows = piece.work(settings, *piece.arguments)
    except LeftOut as reason:
        return _without_rows(piece, LEFT_OUT, str(reason))
    except Exception as error:
        # Whatever it is, the others are worth their time; the outcome names it and the command fails at its end.
        logger.info("%s, %s", piece.section, piece.title, exc_info=True)
        return _without_rows(piece, FAILED, describe_error(error), time.perf_counter() - begin)
    finally:
        gc.collect()
    return Outcome(piece.section, piece.title, MEASURED, "", time.perf_counter() - begin, rows)


def _without_rows(piece: Piece, status: str, reason: str, seconds: float = 0.0) -> Outcome:
    return Outcome(piece.section, piece.title, status, reason, seconds)


def attempt(name: str, work: Callable[[], T]) -> T | NoFigure:
    """What the work gives, or why it gives nothing. An error that costs the device is raised."""
    try:
        result = work()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except LeftOut as reason:
        return NoFigure(name, str(reason), failed=False)
    except Exception as error:
        if not device_answers():
            raise
        logger.info("%s: %s", name, describe_error(error), exc_info=True)
        # A backend that this device or version of PyTorch does not have is nobody's failure.
        is_memory = isinstance(error, torch.OutOfMemoryError)
        return NoFigure(name, describe_error(error), "No available kernel" not in str(error), is_memory)
    return result


def describe_error(error: Exception) -> str:
    """One line: a compiler's message says at its end what an error of the device says first."""
    lines = [line.strip()[:200] for line in str(error).splitlines() if line.strip()]
    shown = " ... ".join([lines[0], lines[-1]] if len(lines) > 1 else lines)
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def device_answers() -> bool:
    """Whether the device works: after a kernel's illegal access everything fails until the process ends."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return float(torch.ones(1, device="cuda")) == 1.0
    except RuntimeError:
        return False
