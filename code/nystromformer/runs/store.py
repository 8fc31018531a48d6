"""A folder of finished pieces of a command's work, from which the same command resumes after any interruption.

The folder has a mark that says which command made it and from what. A folder without one, or with another one, is
refused and left as it is. Every piece has a checksum over its bytes, its name and the digest of the mark: what is
damaged is made again, what belongs to other work is refused. One process at a time has the folder. Temporary names are
random, and nothing that this command did not write is ever replaced or removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nystromformer import __version__
from nystromformer.errors import UserError
from nystromformer.files.writing import (
    NewFile,
    is_temporary_name,
    open_ordinary,
    place_new,
    read_ordinary,
    sha256_of,
    sync_folder,
    temporary_name,
    writing,
)
from nystromformer.wording import first_names

logger = logging.getLogger(__name__)

FORMAT = 1
"""Of a folder of pieces."""
MARK = "mark"
PARTS = "parts"
"""Folder of the finished parts within one that a command fills; removed when all of it is complete."""
_LOCKS = "locks"
"""A byte of it for each number that a process works at."""
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

    def write(self, name: str) -> PieceWriter:
        """A context manager that takes a piece's bytes; the piece is there once it ends.

        Raises:
            UserError: it cannot be written, or something of its name is there.
        """
        return PieceWriter(self.folder / name, _head(name, self.origin))

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
            UserError: something else is in its place, or it is a piece of other work; it is left as it is.
        """
        path = self.folder / name
        content = read_ordinary(path)
        if content is None:
            return None
        if content and not _is_own(content):
            raise UserError(f"{path}: expected a part that this command wrote, found another file: move it away")
        if (body := _unsealed(content)) is None:
            logger.warning("%s: damaged; it is computed again", path)
            path.unlink()
            return None
        if not body.startswith(head := _head(name, self.origin)):
            raise UserError(f"{path}: expected the part of this name, found one of another computation: move it away")
        return body[len(head) :]


class PieceWriter:
    """Takes the bytes of a piece."""

    def __init__(self, path: Path, head: bytes) -> None:
        self._file = NewFile(path, exclusive=True)
        self._head = head

    def __enter__(self) -> PieceWriter:
        self._file.__enter__()
        self.write(self._head)
        return self

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            try:
                self._file.write(self._file.stamp.sha256.encode())
            except UserError as failure:
                self._file.__exit__(type(failure), failure, None)
                raise
        self._file.__exit__(kind, error, tb)


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
        self._command, self._elsewhere = command, elsewhere
        again = f"again with {source}" if source else "again"
        self._advice = f"remove {folder} to start {again}, or {elsewhere}"
        self._facts = json.loads(json.dumps({**facts, "version": __version__, "format": FORMAT}))
        self.pieces = Pieces(folder, hashlib.sha256(_as_json([command, self._facts])).hexdigest())
        self.whole = folder / temporary_name("whole")
        """A folder for files that get their final names when all of them are written."""
        self._is_shared = shared
        self._lock_kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        self._lock = -1

    def __enter__(self) -> Store:
        with writing(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            while not self._taken():
                pass
        try:
            self._check_mark()
            if not self._is_finished:
                if not self._is_shared:
                    self._remove_temporary()
                with writing(self.whole):
                    self.whole.mkdir()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with suppress(OSError):
            self.whole.rmdir()
        self._release()

    def _release(self) -> None:
        os.close(self._lock)  # and with it goes the lock

    def _taken(self) -> bool:
        """Whether this process has the folder now; False where another one has changed it meanwhile.

        The mark is locked before it has its name: whoever finds one that nobody holds finds an earlier start's.
        """
        mark = self.folder / MARK
        with suppress(FileExistsError):
            self.folder.mkdir()
        try:
            if not stat.S_ISDIR(self.folder.lstat().st_mode):
                raise UserError(
                    f"{self.folder}: expected a folder of this command's own, found something else: move it away, or "
                    f"{self._elsewhere}"
                )
            handle = open_ordinary(mark, os.O_RDWR)
            if handle is None:
                if strange := self._strangers():
                    raise UserError(
                        f"{self.folder}: expected a folder that {self._command} made, found one with "
                        f"{first_names(strange)} and without its file {MARK!r}: move it away, or {self._elsewhere}"
                    )
                handle = self._write_mark(mark)
        except FileNotFoundError:  # removed with its folder
            return False
        if handle is None:
            return False
        try:
            fcntl.flock(handle, self._lock_kind)
        except BlockingIOError:
            os.close(handle)
            raise UserError(f"{self.folder}: another command is using it: wait for it, or stop it") from None
        except OSError as error:
            os.close(handle)
            reason = error.strerror or error
            raise UserError(f"{mark}: cannot be locked ({reason}); choose a folder on another disk") from error
        if not os.fstat(handle).st_nlink:  # of a command that has ended since
            os.close(handle)
            return False
        self._lock = handle
        return True

    def _write_mark(self, mark: Path) -> int | None:
        """Make the mark, locked; None where there is one now."""
        temporary = mark.with_name(temporary_name(mark.name))
        handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            content = _head(MARK, self.pieces.origin) + _as_json([self._command, self._facts])
            fcntl.flock(handle, self._lock_kind)
            os.write(handle, content + _sha256(content))
            os.fsync(handle)
            place_new(temporary, mark)
            sync_folder(self.folder)
        except UserError:
            temporary.unlink(missing_ok=True)
            os.close(handle)
            return None
        except BaseException:
            temporary.unlink(missing_ok=True)
            os.close(handle)
            raise
        return handle

    def _check_mark(self) -> None:
        mark = self.folder / MARK
        body = _unsealed(read_ordinary(mark) or b"")
        if body is None or not body.startswith(_HEAD + b'{"name": "%s", ' % MARK.encode()):
            raise UserError(
                f"{mark}: damaged, or not of this command, so the parts beside it cannot be identified: {self._advice}"
            )
        command, facts = json.loads(body[len(_HEAD) :].partition(b"\n")[2])
        if command != self._command:
            raise UserError(f"{self.folder}: holds parts that {command} made: {self._advice}")
        other = [name for name in {**self._facts, **facts} if facts.get(name, ...) != self._facts.get(name, ...)]
        if other:
            raise UserError(
                f"{self.folder}: holds finished parts that were computed with other {' and '.join(other)}; they were "
                f"left as they are: repeat the command that computed them, or {self._advice}"
            )

    @property
    def _is_finished(self) -> bool:
        return self.pieces.read(_FINISHED) is not None

    @property
    def has_pieces(self) -> bool:
        """Whether there is any work to resume from."""
        return any(self._own_files())

    def publish(self, into: Path, names: Iterable[str]) -> None:
        """Give files of `whole` their final names in a folder, in this order; resumed by `publish_again` if killed.

        Raises:
            UserError: something has one of the names.
        """
        stamps = {name: sha256_of(self.whole / name) for name in names}
        with self.pieces.write(_FINISHED) as piece:
            piece.write(_as_json([self.whole.name, stamps]))
        self._place(into, self.whole, stamps)

    def publish_again(self, into: Path) -> bool:
        """Go on with a `publish` that was interrupted; False where none was.

        Raises:
            UserError: something else has one of the names now, or a file is not as it was written.
        """
        content = self.pieces.read(_FINISHED)
        if content is None:
            return False
        name, stamps = json.loads(content)
        whole = self.folder / name
        for name, sha256 in stamps.items():
            there = whole / name if os.path.lexists(whole / name) else into / name
            if _read_sha256(there) != sha256:
                raise UserError(
                    f"{into / name}: expected the file that this command was about to finish, found another one or a "
                    f"damaged one: move it away, and {self._advice}"
                )
        self._place(into, whole, stamps)
        return True

    def _place(self, into: Path, whole: Path, stamps: Mapping[str, str]) -> None:
        for name, sha256 in stamps.items():
            source, target = whole / name, into / name
            with writing(target):
                if not os.path.lexists(source):
                    continue
                if _read_sha256(target) == sha256:  # killed between the two steps of a renaming
                    source.unlink()
                else:
                    place_new(source, target)
                sync_folder(into)

    def remove(self) -> None:
        """Remove what this command wrote there, and the folder where nothing else is in it."""
        with writing(self.folder):
            for path in sorted(self._own_files(), key=lambda path: path.name == _FINISHED):
                path.unlink()
            self._remove_temporary()
            (self.folder / _LOCKS).unlink(missing_ok=True)
            (self.folder / MARK).unlink()
            with suppress(OSError):
                self.folder.rmdir()
                return
        logger.warning(
            "%s: kept, for %s in it", self.folder, first_names(sorted(path.name for path in self.folder.iterdir()))
        )

    def _own_files(self) -> Iterable[Path]:
        """The pieces, damaged ones included."""
        for path in self.folder.iterdir():
            if path.name != MARK and path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    if _is_own(file.read(len(_HEAD))):
                        yield path

    def _remove_temporary(self) -> None:
        """What an interrupted start was writing."""
        for path in filter(_is_temporary, list(self.folder.iterdir())):
            if stat.S_ISDIR(path.lstat().st_mode):
                for each in path.iterdir():
                    each.unlink()
                path.rmdir()
            else:
                path.unlink()

    def _strangers(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not _is_temporary(path))


def write_folder(
    folder: Path,
    command: str,
    facts: Mapping[str, Any],
    files: Sequence[Path],
    write: Callable[[Store], Sequence[str]],
    final: type[UserError] | tuple[()] = (),
) -> None:
    """Have files written, and give them their names in a folder once all are whole; one command at a time.

    Args:
        command, facts: as of Store.
        files: none of these may be there.
        write: writes into the store's folder of whole files, and names them in the order in which they appear.
        final: an error after which the finished parts are of no use.

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
            except BaseException as error:
                if isinstance(error, final) or not store.has_pieces:
                    store.remove()
                raise
            store.remove()
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()  # where nothing is left in it
        raise


def _is_temporary(path: Path) -> bool:
    return is_temporary_name(path.name) and not path.is_symlink()


def _head(name: str, origin: str) -> bytes:
    return _HEAD + _as_json({"name": name, "origin": origin}) + b"\n"


def _as_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _is_own(content: bytes) -> bool:
    """Whether a file begins as a piece does, or would if some of its bytes were not damaged."""
    equal = sum(one == other for one, other in zip(content, _HEAD, strict=False))
    return 2 * equal > min(len(content), len(_HEAD))


def _unsealed(content: bytes) -> bytes | None:
    """What a file holds before its checksum; None where it is damaged."""
    body = content[:-_SHA256_BYTES]
    return body if content[-_SHA256_BYTES:] == _sha256(body) else None


def _sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _read_sha256(path: Path) -> str | None:
    """Of an ordinary file; None of anything else."""
    return sha256_of(path) if path.is_file() and not path.is_symlink() else None
