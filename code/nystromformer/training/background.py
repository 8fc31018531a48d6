"""Work beside the training that has to end well before anything is written that rests on it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nystromformer.training.group import Group

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_AFTER_A_STOP = 20.0
"""Schedulers and torchrun kill what has not ended about 30 seconds after their signal: so much is waited at the most,
and the rest is for writing the checkpoint."""


class Background:
    """Work in a thread of this process, or none.

    Args:
        work: takes an event that tells it to stop; what it raises is raised by `require`.
        what: it does, for a sentence to those who wait.
    """

    def __init__(self, work: Callable[[threading.Event], object] | None = None, what: str = "") -> None:
        self.what = what
        self._stop, self._done = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._settled = False
        self._thread: threading.Thread | None = None
        if work is None:
            self._done.set()
        else:
            self._thread = threading.Thread(target=self._run, args=(work,), name="background", daemon=True)
            self._thread.start()

    @property
    def is_pending(self) -> bool:
        """Whether the work has not ended yet."""
        return not self._done.is_set()

    @property
    def failed(self) -> bool:
        """Whether the work has ended in an error, which `require` raises."""
        return self._error is not None

    def require(self, group: Group) -> None:
        """Wait for the work of all processes, each of which calls this.

        Raises:
            UserError: what it raised in the first process in which it did.
        """
        self.wait(group)

    def wait(self, group: Group, is_stopped: Callable[[], bool] = lambda: False) -> bool:
        """As `require`, but for no longer than `SECONDS_AFTER_A_STOP` once `is_stopped` holds in a process; whether the
        work of all processes has ended well.

        Raises:
            UserError: as `require`, without waiting for those that are still at work.
        """
        if self._settled:
            return True
        pending, failed = group.highest(int(self.is_pending), int(self.failed))
        if pending and not failed and self.what and group.is_main:
            logger.info("waiting for %s to finish before writing anything", self.what)
        stopped_at: float | None = None
        while True:
            # not at once: other processes may wait for minutes, and a collective would take that for a failure
            is_pending = not self._done.wait(_SECONDS_BETWEEN_LOOKS)
            if stopped_at is None and is_stopped():
                stopped_at = time.monotonic()
            is_late = stopped_at is not None and time.monotonic() - stopped_at >= SECONDS_AFTER_A_STOP
            # decided together, so that all leave in the same round
            pending, failed, late = group.highest(int(is_pending), int(self.failed), int(is_late))
            if failed or not pending:
                break
            if late:
                return False
        group.check(self._raise)
        self._settled = True
        return True

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What fails in here may fail because of what the work is about to find: where it finds something, that is
        raised instead. Each process asks for itself, as one that failed can wait for no other."""
        try:
            yield
        except Exception:
            self._done.wait()
            self._raise()
            raise

    def close(self) -> None:
        """Stop the work, if it is not done."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, work: Callable[[threading.Event], object]) -> None:
        try:
            work(self._stop)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
