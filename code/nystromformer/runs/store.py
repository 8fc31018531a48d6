"""A folder of finished pieces of a command's work, from which the same command resumes after any interruption.

The folder has a mark that says which command made it and from what. A folder without one, or with another one, is
refused and left as it is. Every piece has a checksum over its bytes, its name and the digest of the mark: what is
damaged is made again, what belongs to other work is refused. One process at a time has the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nystromformer import __version__
from nystromformer.errors import UserError
from nystromformer.files.checked_json import read_checked, write_checked
from nystromformer.files.writing import NewFile, place_new, sha256_of, sync_folder, writing
from nystromformer.wording import first_names

logger = logging.getLogger(__name__)

FORMAT = 2
"""Of a folder of pieces."""
MARK = "mark"
PARTS = "parts"
"""Folder of the finished parts within one that a command fills; removed when all of it is complete."""
_LOCK, _LOCKS, _WHOLE = "lock", "locks", "whole"
"""Who has the folder; a byte for each number that a process works at; and the files that are not published yet."""
_FINISHED = "finished"
"""The piece that names the whole files, once all of them are written and some may have their final names."""
_HEAD = b"a finished piece of work of nystromformer\n"
_SHA256_BYTES = 64


@dataclass(frozen=True)
class Pieces:
    """The pieces in a store's folder; pickles, so that worker processes write them, too.

    Args:
        origin: digest of what they are made from.
    """

    folder: Path
    origin: str

    @contextmanager
    def write(self, name: str) -> Iterator[NewFile]:
        """Gives what takes a piece's bytes; the piece is there once the block ends.

        Raises:
            UserError: it cannot be written.
        """
        with NewFile(self.folder / name) as file:
            file.write(self._head(name))
            yield file
            file.write(file.stamp.sha256.encode())

    @contextmanager
    def alone(self, number: int, wait: bool = True) -> Iterator[bool]:
        """Keep other processes from the work of a number while the context lasts; gives whether they are kept.

        Args:
            wait: until another process that has it is done, or has ended; else give False at once.
        """
        with (self.folder / _LOCKS).open("a+b") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, number)
            except (BlockingIOError, PermissionError):
                yield False
            else:
                yield True

    def read(self, name: str) -> bytes | None:
        """A piece's bytes; None where it is not there, or was damaged, which is said and the piece removed.

        Raises:
            UserError: something else is in its place; it is left as it is.
        """
        path, head = self.folder / name, self._head(name)
        if not path.exists():
            return None
        content = path.read_bytes()
        body = content[:-_SHA256_BYTES]
        if body.startswith(head) and content[len(body) :] == hashlib.sha256(body).hexdigest().encode():
            return body[len(head) :]
        if content and not _HEAD.startswith(content[: len(_HEAD)]):
            raise UserError(f"{path}: expected a part that this command wrote, found another file: move it away")
        logger.warning("%s: damaged, or of another computation; it is computed again", path)
        path.unlink()
        return None

    def _head(self, name: str) -> bytes:
        return _HEAD + json.dumps({"name": name, "origin": self.origin}).encode() + b"\n"


class Store:
    """A folder of pieces, held by one process, or by several that share it, from the beginning to the end of a `with`;
    it stays until `remove`.

    Args:
        command: that makes the pieces, as users call it.
        facts: all that they are made from (a run, a checkpoint's hash, a table's digest, flags), as JSON has it.
        elsewhere: how to have the pieces in another folder, such as "choose another --out".
        source: the file that they are made from now, as users call it.
        shared: with all processes that have it so; they write pieces, and a process that has it alone does the rest.

    Raises (on entry):
        UserError: the folder is not this command's, has pieces made from something else, or is in use.
    """

    def __init__(
        self,
        folder: Path,
        command: str,
        facts: Mapping[str, Any],
        elsewhere: str,
        source: str = "",
        shared: bool = False,
    ) -> None:
        self.folder = folder
        self._command = command
        again = f"again with {source}" if source else "again"
        self._advice = f"remove {folder} to start {again}, or {elsewhere}"
        self._facts = json.loads(json.dumps({**facts, "version": __version__, "format": FORMAT}))
        mark = json.dumps([command, self._facts], sort_keys=True)
        self.pieces = Pieces(folder, hashlib.sha256(mark.encode()).hexdigest())
        self.whole = folder / _WHOLE
        """A folder for files that get their final names when all of them are written."""
        self._is_shared = shared

    def __enter__(self) -> Store:
        mark = self.folder / MARK
        names = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()
        # Of a folder that another command is filling or removing just now, the mark was there before, or is there now.
        if (strange := names - {_LOCK, _LOCKS, f"{MARK}.tmp"}) and MARK not in names and not mark.exists():
            raise UserError(
                f"{self.folder}: expected a folder that {self._command} made, found one with "
                f"{first_names(sorted(strange))} and without its file {MARK!r}: {self._advice}"
            )
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / _LOCK).open("a+")
        try:
            self._begin(mark)
        except BaseException:
            self._lock.close()
            raise
        return self

    def _begin(self, mark: Path) -> None:
        in_use = UserError(f"{self.folder}: another command is using it: wait for it, or stop it")
        try:
            fcntl.flock(self._lock, (fcntl.LOCK_SH if self._is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise in_use from None
        if not os.fstat(self._lock.fileno()).st_nlink:  # it has ended just now, and removed the folder
            raise in_use
        with self.pieces.alone(0):
            if not mark.exists():
                write_checked(mark, {"command": self._command, "facts": self._facts})
        self._check_mark(mark)
        with writing(self.whole):
            if not self._is_shared and self.pieces.read(_FINISHED) is None:
                shutil.rmtree(self.whole, ignore_errors=True)
                for path in self.folder.glob("*.tmp"):
                    path.unlink()
            self.whole.mkdir(exist_ok=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(OSError):
            self.whole.rmdir()
        self._lock.close()  # and with it goes the lock

    def _check_mark(self, mark: Path) -> None:
        try:
            found = read_checked(mark)
            command, facts = found["command"], found["facts"]
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"{mark}: damaged, or not of this command, so the parts beside it cannot be identified: {self._advice}"
            ) from None
        if command != self._command:
            raise UserError(f"{self.folder}: holds parts that {command} made: {self._advice}")
        other = [name for name in {**self._facts, **facts} if facts.get(name, ...) != self._facts.get(name, ...)]
        if other:
            raise UserError(
                f"{self.folder}: holds finished parts that were computed with other {' and '.join(other)}; they were "
                f"left as they are: repeat the command that computed them, or {self._advice}"
            )

    @property
    def has_pieces(self) -> bool:
        """Whether there is any work to resume from."""
        return bool({path.name for path in self.folder.iterdir()} - {MARK, _LOCK, _LOCKS, _WHOLE})

    def publish(self, into: Path, names: Sequence[str]) -> None:
        """Give files of `whole` their final names in a folder, in this order; resumed by `publish_again` if killed.

        Raises:
            UserError: something has one of the names.
        """
        stamps = {name: sha256_of(self.whole / name) for name in names}
        with self.pieces.write(_FINISHED) as piece:
            piece.write(json.dumps(stamps).encode())
        self._place(into, stamps)

    def publish_again(self, into: Path) -> bool:
        """Go on with a `publish` that was interrupted; False where none was.

        Raises:
            UserError: something else has one of the names now, or a file is not as it was written.
        """
        content = self.pieces.read(_FINISHED)
        if content is None:
            return False
        stamps = json.loads(content)
        for name, sha256 in stamps.items():
            there = self.whole / name if (self.whole / name).exists() else into / name
            if not there.is_file() or sha256_of(there) != sha256:
                raise UserError(
                    f"{into / name}: expected the file that this command was about to finish, found another one or a "
                    f"damaged one: move it away, and {self._advice}"
                )
        self._place(into, stamps)
        return True

    def _place(self, into: Path, names: Mapping[str, str]) -> None:
        for name in names:
            if (self.whole / name).exists():
                with writing(into / name):
                    place_new(self.whole / name, into / name)
                    sync_folder(into)

    def remove(self) -> None:
        """Remove the folder. Pieces go first and the mark after them, so that a kill leaves what is known."""
        last = {_FINISHED: 1, MARK: 2, _LOCK: 3}
        with writing(self.folder):
            for path in sorted(self.folder.iterdir(), key=lambda path: last.get(path.name, 0)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.folder.rmdir()


def write_folder(
    folder: Path,
    command: str,
    facts: Mapping[str, Any],
    files: Sequence[Path],
    write: Callable[[Store], Sequence[str]],
) -> None:
    """Have files written, and give them their names in a folder once all are whole; one command at a time.

    Args:
        command, facts: as of Store.
        files: none of these may be there.
        write: writes into the store's folder of whole files, and names them in the order in which they appear.

    Raises:
        UserError: the folder is not free; as the store, and as `write`. Finished parts stay.
    """

    def check_free() -> None:
        for path in files:
            if os.path.lexists(path):
                raise UserError(f"{path}: is there already: move it away, or choose another --out")

    if not (folder / PARTS / MARK).is_file():
        check_free()
    is_new = not folder.exists()
    try:
        with Store(folder / PARTS, command, facts, "choose another --out") as store:
            try:
                if not store.publish_again(folder):
                    # What came beside the parts of an earlier start is refused before hours of work, too.
                    check_free()
                    store.publish(folder, write(store))
            except BaseException:
                if not store.has_pieces:
                    store.remove()
                raise
            store.remove()
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()  # where nothing is left in it
        raise
