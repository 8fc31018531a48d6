"""One command, run as a user would: in a fork of this process, which has imported all it needs."""

import atexit
import contextlib
import ctypes
import gc
import os
import resource
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 30
"""Seconds after which a command of the small world hangs: the slowest takes two."""
Hook = Callable[[], None]
"""Called in the command's process before it begins: limits and faults."""
_ADDRESS_SPACE = 6 << 30
"""Bytes that a command may take beside what its parent has: what asks for more fails, and not the machine."""
_PR_SET_PDEATHSIG = 1
_FILES = 256
"""Files that a command may open, and with them processes that it may start."""


@dataclass(frozen=True)
class Command:
    """A script of the repository, and its flags."""

    script: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.script, *self.flags))


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    status: as a shell has it, or minus the signal's number; None where it was ended after its time.
    """

    status: int | None
    stdout: str
    stderr: str
    seconds: float = 0

    @property
    def text(self) -> str:
        return self.stdout + self.stderr


class Running:
    """A command at work in a folder, in a session of its own. Its output goes to files beside the folder."""

    def __init__(self, command: Command, cwd: Path, hook: Hook | None = None) -> None:
        self._outputs = [cwd.with_name(f"{cwd.name}.{name}") for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.write_bytes(b"")
        self._began = time.monotonic()
        self._status: int | None = None
        self.pid = os.fork() or _run_in_fork(command, cwd, self._outputs, hook)

    def wait(self, seconds: float) -> int | None:
        """The exit status; None where it is at work after so long."""
        end = time.monotonic() + seconds
        while self._status is None and time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.005)
        return self._status

    def read_output(self) -> list[str]:
        """What it has written by now, to stdout and to stderr."""
        return [path.read_text(errors="replace") for path in self._outputs]

    def send(self, number: int, whole: bool = False) -> None:
        """Send a signal to its first process, or to the whole session."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if whole else os.kill)(self.pid, number)

    def end(self, limit: float = LIMIT) -> Ended:
        """Wait for it, or end it after `limit` seconds; nothing of it is left."""
        status = self.wait(limit)
        self.send(signal.SIGKILL, whole=True)
        if status is None:
            os.waitpid(self.pid, 0)
        return Ended(status, *self.read_output(), time.monotonic() - self._began)


def run(command: Command, cwd: Path, hook: Hook | None = None, limit: float = LIMIT) -> Ended:
    """Run a command to its end, or to its limit in seconds."""
    return Running(command, cwd, hook).end(limit)


def end_with_parent() -> None:
    """Have this process killed when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_memory_limit(more: int) -> None:
    """Let this process take so many bytes of address space beside what it has."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, taken + more))


def _run_in_fork(command: Command, cwd: Path, outputs: Sequence[Path], hook: Hook | None) -> NoReturn:
    """Be the command, and end."""
    status = 1
    try:
        _become(cwd, outputs)
        status = _call(command, hook)
    finally:
        os._exit(status & 0xFF)


def _become(cwd: Path, outputs: Sequence[Path]) -> None:
    """Make this fork what a process just started would be."""
    os.setsid()
    end_with_parent()
    for number, path in enumerate((Path(os.devnull), *outputs)):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
    # New ones, with nothing in them that this process had yet to write.
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # type: ignore[misc]  # noqa: SIM115
    os.chdir(cwd)
    # One thread, so that numbers repeat; nothing of the user's home, nothing from the network.
    kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR") if key in os.environ}
    ours = {"PYTHONPATH": str(ROOT / "code"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    home = {"HOME": "/proc/nonexistent", "MPLCONFIGDIR": f"{tempfile.gettempdir()}/campaign-matplotlib-{os.getuid()}"}
    os.environ.clear()
    os.environ.update({**kept, **ours, **home, "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The first line of each script, which is imported here already.
    set_memory_limit(_ADDRESS_SPACE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.unfreeze()


def _call(command: Command, hook: Hook | None) -> int:
    """Run the script as `python` does, up to what happens at an exit."""
    sys.argv = [str(ROOT / command.script), *command.flags]
    sys.path[0] = str((ROOT / command.script).parent)
    status = 0
    try:
        if hook is not None:
            hook()
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:
        traceback.print_exc()
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return status
