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

    def measure(self, settings: Any) -> Sequence[Any]:
        return self.work(settings, *self.arguments)


class LeftOut(Exception):
    """Why something within a piece is not measured: it is not there, or would take too long."""


@dataclass(frozen=True)
class NoFigure:
    """Why something within a piece has no figure."""

    reason: str
    is_failure: bool
    """Not where it was left out."""
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
        yield measure_piece(piece, settings)[0] if reason is None else _left_out(piece, reason)


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
    waiting, workers = deque(pieces), [_Worker(settings) for _ in range(min(count, len(pieces)))]
    try:
        while True:
            for worker in workers:
                while waiting and worker.piece is None:
                    piece = waiting.popleft()
                    reason = refusal(piece)
                    if reason is None:
                        worker.begin(piece)
                    else:
                        yield _left_out(piece, reason)
            busy = {worker.connection: worker for worker in workers if worker.piece is not None}
            if not busy:
                return
            ends = [until_stopped(worker.section) for worker in busy.values()] if until_stopped is not None else []
            ready = wait(list(busy), timeout=min(ends, default=None))
            for connection in ready:
                assert isinstance(connection, Connection)
                yield busy[connection].result()
            if ready or until_stopped is None:
                continue
            for worker in busy.values():
                if not until_stopped(worker.section):
                    yield worker.stopped()
    finally:
        for worker in workers:
            worker.end()


@dataclass
class _Started:
    process: multiprocessing.process.BaseProcess
    connection: Connection


class _Worker:
    """A process that measures one piece after another; another one takes its place when it has lost the device."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._started: _Started | None = None
        self.piece: Piece | None = None

    @property
    def connection(self) -> Connection:
        assert self._started is not None
        return self._started.connection

    @property
    def section(self) -> str:
        """Of the piece that it measures."""
        assert self.piece is not None
        return self.piece.section

    def begin(self, piece: Piece) -> None:
        self.piece = piece
        if self._started is None:
            self._started = self._start()
        try:
            self.connection.send(piece)
        except OSError:
            # It has ended since its last piece.
            self.end()
            self._started = self._start()
            self.connection.send(piece)

    def _start(self) -> _Started:
        # Of a process that compiles layers; by default as many as there are cores, and several compile at once.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        # A process that is forked could not use the device.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._settings))
        process.start()
        theirs.close()
        return _Started(process, ours)

    def result(self) -> Outcome:
        """What the process has to say: the piece's outcome, or nothing any more."""
        assert self.piece is not None
        assert self._started is not None
        piece, self.piece = self.piece, None
        try:
            outcome, is_usable = self.connection.recv()
        except (EOFError, OSError):
            self._started.process.join(5)
            status = self._started.process.exitcode
            self.end()
            return _failed(piece, f"its process ended with status {status}")
        if not is_usable:
            self.end()
        assert isinstance(outcome, Outcome)
        return outcome

    def stopped(self) -> Outcome:
        """Stop what is measured; the next piece gets another process."""
        assert self.piece is not None
        piece, self.piece = self.piece, None
        self.end()
        return _failed(piece, "stopped: its section's time was over")

    def end(self) -> None:
        if self._started is not None:
            self._started.process.kill()
            self._started.process.join()
            self._started.connection.close()
            self._started = None


def _serve(connection: Connection, settings: Any) -> None:
    """Measure what comes until nothing can come any more."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Ctrl-C reaches every process of a terminal: the first one ends the others, and none outlives it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    while True:
        try:
            piece = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send(measure_piece(piece, settings))
        except BrokenPipeError:
            return


def measure_piece(piece: Piece, settings: Any) -> tuple[Outcome, bool]:
    """The piece's outcome whatever happens within it, and whether the device can still be used."""
    begin = time.perf_counter()
    try:
        rows = piece.measure(settings)
    except LeftOut as reason:
        outcome = _left_out(piece, str(reason))
    except Exception as error:
        # Whatever it is, the others are worth their time; the outcome names it and the command fails at its end.
        logger.info("%s, %s", piece.section, piece.title, exc_info=True)
        outcome = _failed(piece, described(error), time.perf_counter() - begin)
    else:
        outcome = Outcome(piece.section, piece.title, MEASURED, "", time.perf_counter() - begin, rows)
    gc.collect()
    return outcome, device_answers()


def _left_out(piece: Piece, reason: str) -> Outcome:
    return Outcome(piece.section, piece.title, LEFT_OUT, reason)


def _failed(piece: Piece, reason: str, seconds: float = 0.0) -> Outcome:
    return Outcome(piece.section, piece.title, FAILED, reason, seconds)


def attempt(work: Callable[[], T]) -> T | NoFigure:
    """What the work gives, or why it gives nothing. An error that costs the device is raised."""
    try:
        result = work()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except LeftOut as reason:
        return NoFigure(str(reason), is_failure=False)
    except Exception as error:
        if not device_answers():
            raise
        logger.info("%s", described(error), exc_info=True)
        # A backend that this device or version of PyTorch does not have is nobody's failure.
        is_memory = isinstance(error, torch.OutOfMemoryError)
        return NoFigure(described(error), "No available kernel" not in str(error), is_memory)
    return result


def described(error: Exception) -> str:
    """One line: a compiler's message says at its end what an error of the device says first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ends = [lines[0], lines[-1]] if len(lines) > 1 else lines
    return (
        ": ".join([type(error).__name__, " ... ".join(line[:200] for line in ends)]) if ends else type(error).__name__
    )


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
