"""Passing faults of a machine, put into a command's process: a disk, a network or a kernel that says no."""

import builtins
import errno
import io
import itertools
import mmap
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from campaign.commands import Hook

ERRORS = ("EIO", "ESTALE", "EMFILE", "ENFILE", "ENOMEM", "EACCES", "EPERM", "ETIMEDOUT")
"""What a healthy file may answer with for a while."""
STRANGER = 65534
"""The user `nobody`: for root no permission is missing."""


class Mark:
    """Whether a fault came to pass; seen by the processes that were forked behind it."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._byte[0] = 1

    def __bool__(self) -> bool:
        return bool(self._byte[0])


def fails_to_open(path: Path, name: str, mark: Mark, after: int = 0) -> Hook:
    """From now on opening the file fails; the first `after` times it does not."""

    def fail(number: int) -> None:
        if number >= after:
            raise _error(name, mark, path)

    return lambda: _at_each_opening(path, fail)


def changes_when_opened(path: Path, content: bytes, after: int) -> Hook:
    """The file has another content when it is opened for the time of number `after`, from 0."""

    def change(number: int) -> None:
        if number == after:
            path.unlink()  # another file, as editors write it: who has the first one open has it still
            path.write_bytes(content)

    return lambda: _at_each_opening(path, change)


def _at_each_opening(path: Path, act: Callable[[int], None]) -> None:
    """From now on in this process call `act`, with a number from 0, before the file is opened."""
    real_open, real_os_open, numbers = io.open, os.open, itertools.count()

    def look(file: Any) -> None:
        if not isinstance(file, int) and _same(file, path):
            act(next(numbers))

    def opens(file: Any, *args: Any, **kwargs: Any) -> Any:
        look(file)
        return real_open(file, *args, **kwargs)

    def os_opens(file: Any, *args: Any, **kwargs: Any) -> int:
        look(file)
        return real_os_open(file, *args, **kwargs)

    _replace_open(opens)
    os.open = os_opens


def fails_to_read(path: Path, name: str, mark: Mark, after: int) -> Hook:
    """The file opens, and reading it fails behind so many bytes, as it does on a dying disk: with no file's name."""

    def hook() -> None:
        real_open = io.open

        def opens(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or not _same(file, path) or "r" not in mode or "+" in mode:
                return real_open(file, mode, *args, **kwargs)
            buffered = io.BufferedReader(_Failing(os.fspath(file), after, name, mark))
            if "b" in mode:
                return buffered
            names = ("buffering", "encoding", "errors", "newline")
            given = dict(zip(names, args, strict=False)) | kwargs
            return io.TextIOWrapper(buffered, *(given.get(key) for key in names[1:]))

        _replace_open(opens)

    return hook


def fails_to_write(name: str, mark: Mark, after: int) -> Hook:
    """The file that is renamed to its final name as number `after` cannot be: the disk says no."""
    numbers = itertools.count(1)

    def rename(real: Callable[[], None], source: Any, target: Any) -> None:
        if next(numbers) == after:
            raise _error(name, mark, source)
        real()

    return lambda: _at_each_rename(rename)


def slow_to_write(seconds: float) -> Hook:
    """Each file gets its final name so much later, as on a busy disk: time for others to be in the way."""

    def rename(real: Callable[[], None], source: Any, target: Any) -> None:
        time.sleep(seconds)
        real()

    return lambda: _at_each_rename(rename)


def dies_after(name: str) -> Hook:
    """The process is gone at once when a file of this name is in its place: a kill at a moment that repeats."""

    def rename(real: Callable[[], None], source: Any, target: Any) -> None:
        real()
        if Path(target).name == name:
            os._exit(137)

    return lambda: _at_each_rename(rename)


def _at_each_rename(act: Callable[[Callable[[], None], Any, Any], None]) -> None:
    """From now on in this process call `act` in place of a rename or a link: with that, its source and its target."""

    def acting(real: Callable[..., None]) -> Callable[..., None]:
        return lambda source, target, **kwargs: act(partial(real, source, target, **kwargs), source, target)

    os.replace, os.link = acting(os.replace), acting(os.link)


def without_permission(path: Path, root: Path) -> Hook:
    """Nobody may touch the path, and the command is somebody who is not root."""
    path.chmod(0)
    if os.getuid() != 0:
        return lambda: None
    for folder, names, files in os.walk(root):
        for each in (folder, *(os.path.join(folder, name) for name in (*names, *files))):
            os.chown(each, STRANGER, STRANGER, follow_symlinks=False)

    def hook() -> None:
        os.setgid(STRANGER)
        os.setuid(STRANGER)

    return hook


def any_fault(draw: random.Random, path: Path, mark: Mark) -> tuple[str, Hook]:
    """A fault of a file drawn at random, and what it is in words."""
    name = draw.choice(ERRORS)
    if draw.random() < 0.5:
        after = draw.choice((0, 0, 0, 1, 2))
        return f"{name} when it is opened, after {after} times", fails_to_open(path, name, mark, after)
    after = draw.randrange(path.stat().st_size + 1)
    name = draw.choice(("EIO", "ESTALE", "ENOMEM"))
    return f"{name} when it is read, behind {after} bytes", fails_to_read(path, name, mark, after)


class _Failing(io.FileIO):
    def __init__(self, path: str, after: int, name: str, mark: Mark) -> None:
        super().__init__(path, "r")
        self._after, self._name, self._mark = after, name, mark

    def _check(self) -> None:
        if self.tell() >= self._after:
            raise _error(self._name, self._mark)

    def readinto(self, buffer: Any) -> int | None:
        self._check()
        count = min(len(buffer), max(1, self._after - self.tell()))
        return super().readinto(memoryview(buffer)[:count])

    def readall(self) -> bytes:
        pieces = []
        while piece := super().read(max(1, self._after - self.tell())):
            pieces.append(piece)
            self._check()
        return b"".join(pieces)

    def read(self, size: int | None = -1) -> bytes | None:
        if size is None or size < 0:
            return self.readall()
        self._check()
        return super().read(min(size, max(1, self._after - self.tell())))


def _replace_open(opens: Callable[..., Any]) -> None:
    builtins.open = opens
    io.open = opens  # type: ignore[assignment]  # what pathlib calls


def _same(file: Any, path: Path) -> bool:
    name = os.fsdecode(file)
    return Path(name).name == path.name and os.path.abspath(name) == str(path)


def _error(name: str, mark: Mark, *files: Any) -> OSError:
    mark.set()
    number = getattr(errno, name)
    return OSError(number, os.strerror(number), *map(os.fsdecode, files))
