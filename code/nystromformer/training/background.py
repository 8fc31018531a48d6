"""Work beside the training that has to end well before anything is written that rests on it."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nystromformer.training.group import Group

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LOOKS = 0.5


class Background:
    """Work in a thread of this process, or none.

    Args:
        work: takes an event that tells it to stop; what it raises is raised by `require`.
        what: it does, for a sentence to those who wait.
    """

    def __init__(self, work: Callable[[threading.Event], object] | None = None, what: str = "") -> None:
        self._work = work
        self._what = what
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
    def failed(self) -> bool:
        """Whether the work has ended in an error, which `require` raises."""
        return self._error is not None

    def require(self, group: Group) -> None:
        """Wait for the work of all processes, each of which calls this.

        Raises:
            UserError: what it raised in the first process in which it did.
        """
        if self._settled:
            return
        if group.highest(int(not self._done.is_set()))[0] and self._what and group.is_main:
            logger.info("waiting for the end of %s, before anything is written", self._what)
        # not at once: other processes may wait for minutes, and a collective would take that for a failure
        while group.highest(int(not self._done.wait(_SECONDS_BETWEEN_LOOKS)))[0]:
            pass
        group.check(self._raise)
        self._settled = True

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
