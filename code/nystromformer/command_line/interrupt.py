"""Ctrl-C before a command's own work, and in the middle of an import: one word and status 130, no traceback.

Scripts import this before anything else. Imports of libraries take seconds, and an interrupt within one would end as
whatever that library makes of it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = 128 + signal.SIGINT
_IMPORTING = "<frozen importlib._bootstrap>"

_at_work = False


@contextmanager
def raised() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt where no import is going on."""
    global _at_work
    before, _at_work = _at_work, True
    try:
        yield
    finally:
        _at_work = before


def say() -> None:
    """Say that the command was interrupted; of the processes that torchrun starts on a machine, one does."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        os.write(2, b"interrupted\n")


@contextmanager
def ignored_afterwards() -> Iterator[None]:
    """Behind the block Ctrl-C does nothing: all is done, and what cleans up at the end would show a traceback."""
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _handle:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def install() -> None:
    """Handle Ctrl-C in this process as said above."""
    signal.signal(signal.SIGINT, _handle)
    sys.unraisablehook = _handle_ignored


def _handle(number: int, frame: FrameType | None) -> None:
    if _at_work and not _imports(frame):
        raise KeyboardInterrupt
    say()
    # Nothing is half done that a kill would not leave as well.
    os._exit(STATUS)


def _handle_ignored(fault: "sys.UnraisableHookArgs") -> None:
    """End where a finalizer was interrupted: Python only prints its exceptions, and the command would go on."""
    if not issubclass(fault.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(fault)
        return
    say()
    os._exit(STATUS)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False


def _imported_by_the_script() -> bool:
    """Whether this process runs the script that imports this module, and has not come by it otherwise, as tests do."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_globals["__name__"] == __name__
    ):
        frame = frame.f_back
    return frame is not None and frame.f_back is None and frame.f_globals["__name__"] == "__main__"


if _imported_by_the_script() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    install()
