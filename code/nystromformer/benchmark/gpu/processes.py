"""Items in processes of their own: one that takes the device down, or never ends, costs itself alone."""

import logging
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from nystromformer.benchmark.gpu.items import Item, Outcome, failed, left_out, measured
from nystromformer.benchmark.gpu.settings import GpuBenchmark

Refusal = Callable[[Item], str | None]


def run_here(items: Sequence[Item], settings: GpuBenchmark, refusal: Refusal) -> Iterator[Outcome]:
    """The items in this process, one after another."""
    for item in items:
        reason = refusal(item)
        yield measured(item, settings)[0] if reason is None else left_out(item, reason)


def run_in_processes(
    items: Sequence[Item], settings: GpuBenchmark, refusal: Refusal, until_stopped: Callable[[str], float], count: int
) -> Iterator[Outcome]:
    """The items in `count` processes, begun in order; outcomes as they come.

    Args:
        refusal: why an item is not begun, asked when it would be.
        until_stopped: seconds until items of a section must end.
    """
    waiting, workers = deque(items), [_Worker(settings) for _ in range(min(count, len(items)))]
    try:
        while True:
            for worker in workers:
                while waiting and worker.item is None:
                    item = waiting.popleft()
                    reason = refusal(item)
                    if reason is None:
                        worker.begin(item)
                    else:
                        yield left_out(item, reason)
            busy = {worker.connection: worker for worker in workers if worker.item is not None}
            if not busy:
                return
            ready = wait(list(busy), timeout=min(until_stopped(worker.section) for worker in busy.values()))
            for connection in ready:
                assert isinstance(connection, Connection)
                yield busy[connection].result()
            for worker in () if ready else busy.values():
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
    """A process that measures one item after another; another one takes its place when it has lost the device."""

    def __init__(self, settings: GpuBenchmark) -> None:
        self._settings = settings
        self._started: _Started | None = None
        self.item: Item | None = None

    @property
    def connection(self) -> Connection:
        assert self._started is not None
        return self._started.connection

    @property
    def section(self) -> str:
        """Of the item that it measures."""
        assert self.item is not None
        return self.item.section

    def begin(self, item: Item) -> None:
        self.item = item
        if self._started is None:
            self._started = self._start()
        try:
            self.connection.send(item)
        except OSError:
            # It has ended since its last item.
            self.end()
            self._started = self._start()
            self.connection.send(item)

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
        """What the process has to say: the item's outcome, or nothing any more."""
        assert self.item is not None
        assert self._started is not None
        item, self.item = self.item, None
        try:
            outcome, is_usable = self.connection.recv()
        except (EOFError, OSError):
            self._started.process.join(5)
            status = self._started.process.exitcode
            self.end()
            return failed(item, f"its process ended with status {status}")
        if not is_usable:
            self.end()
        assert isinstance(outcome, Outcome)
        return outcome

    def stopped(self) -> Outcome:
        """Stop what is measured; the next item gets another process."""
        assert self.item is not None
        item, self.item = self.item, None
        self.end()
        return failed(item, "stopped: its section's time was over")

    def end(self) -> None:
        if self._started is not None:
            self._started.process.kill()
            self._started.process.join()
            self._started.connection.close()
            self._started = None


def _serve(connection: Connection, settings: GpuBenchmark) -> None:
    """Measure what comes until nothing can come any more."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    # Ctrl-C reaches every process of a terminal: the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            item = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send(measured(item, settings))
        except BrokenPipeError:
            return
