"""Work of minutes and hours in named parts: each is written whole or not at all, and skipped when it is there.

    results = [out / "all.bin", out / "manifest.json"]
    with open_parts(out / PARTS, "prepare.py", {"seed": 0, "table": sha256}, results) as parts:
        if not results[-1].exists():
            with NewFile(results[0]) as file:
                for name in names:
                    if parts.read(name) is None:
                        with parts.write(name) as part:
                            part.write(compute(name))
                    file.write(parts.read(name))
            write_checked(results[-1], {"files": {"all.bin": vars(file.stamp)}})
        parts.remove()

The folder has a mark that says which command fills it and from what: whatever decides its parts is a fact. A part's
record, written last, holds the SHA-256 of its files, which may lie anywhere, and figures about it. Processes of an
array job open the folder with `shared=True` and take every n-th part, each under `alone`; a start that has it alone
finishes it. `Parts` pickles, so that worker processes write parts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked
from nystromformer.files.writing import FileStamp, NewFile, hold, sha256_of, sync_folder, writing
from nystromformer.wording import first_names

logger = logging.getLogger(__name__)

PARTS = "parts"
"""The usual name of such a folder within the one that a command fills."""
WHOLE = "whole"
"""The name of a part that stands for all: the output that the others are made for."""
MARK = "made_from.json"
_LOCK, _BEGIN, _RECORD = "lock", "begin.lock", ".part.json"


@dataclass(frozen=True)
class Part:
    """A finished part: its files, by their paths from the folder of parts on, and figures that JSON can hold."""

    files: dict[str, FileStamp]
    figures: dict[str, Any]
    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class Parts:
    """The parts in a folder that `open_parts` holds.

    Args:
        origin: digest of what they are made from, which every record repeats.
    """

    folder: Path
    origin: str

    def find(self, name: str, verify: bool = False) -> Part | None:
        """A part; None where it is not finished, or no longer as it was written, which the log says.

        Args:
            verify: compare its files' content, not only their sizes.
        """
        record = self._record(name)
        try:
            if (data := read_checked(record)) is None:
                return None
            if data.pop("origin") != self.origin:
                raise ValueError("of another computation")
            part = checked(Part, data)
        except (ValueError, KeyError) as error:
            logger.warning("%s: %s; the part is made again", record, error)
            return None
        for file, stamp in part.files.items():
            path = self.folder / file
            is_there = path.is_file() and path.stat().st_size == stamp.size
            if not is_there or (verify and sha256_of(path) != stamp.sha256):
                logger.warning("%s: damaged or missing; it is made again", os.path.normpath(path))
                return None
        return part

    def add(self, name: str, files: Mapping[Path, FileStamp], figures: Mapping[str, Any] | None = None) -> Part:
        """Declare a part finished whose files have their final names."""
        part = Part({os.path.relpath(path, self.folder): stamp for path, stamp in files.items()}, dict(figures or {}))
        write_checked(self._record(name), {"origin": self.origin, **asdict(part)})
        return part

    def finish(self, name: str, file: NewFile, target: Path, **figures: Any) -> None:
        """Give a part's only file its final name. Its record is there before: a file without one is somebody else's.

        Raises:
            UserError: something has the name.
        """
        self.add(name, {target: file.stamp}, figures)
        if os.path.lexists(target):
            raise UserError(f"{target}: something else has made it meanwhile, and it was left as it is: move it away")
        file.path.rename(target)
        sync_folder(target.parent)

    @contextmanager
    def write(self, name: str) -> Iterator[NewFile]:
        """Gives what takes the bytes of a part of a single file; the part is finished once the block ends."""
        with NewFile(self.folder / name) as file:
            yield file
        self.add(name, {file.path: file.stamp})

    def read(self, name: str) -> bytes | None:
        """The bytes of a part that `write` wrote; None as of `find`."""
        return None if self.find(name, verify=True) is None else (self.folder / name).read_bytes()

    def alone(self, name: str) -> AbstractContextManager[None]:
        """Keeps processes that share the folder from a part while the context lasts; they wait."""
        return hold(self.folder / f"{name}.lock", "wait")

    def names(self) -> list[str]:
        """Of the parts that have a record, be it damaged."""
        return sorted(path.name.removesuffix(_RECORD) for path in self.folder.glob(f"*{_RECORD}"))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to resume from: no part, and no folder that the command keeps there."""
        return not self.names() and not any(path.is_dir() for path in self.folder.iterdir())

    def discard(self, name: str) -> None:
        """Remove a part's record and its files."""
        files: Mapping[str, Any] = {}
        with suppress(ValueError):  # of a damaged record they are not known
            files = (read_checked(self._record(name)) or {"files": {}})["files"]
        self._record(name).unlink(missing_ok=True)
        for file in files:
            (self.folder / file).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder and what it holds. The mark goes last, so that an interruption leaves what is known."""
        with writing(self.folder):
            for path in sorted(self.folder.iterdir(), key=lambda path: path.name in (MARK, _LOCK)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            self.folder.rmdir()

    def _record(self, name: str) -> Path:
        return self.folder / f"{name}{_RECORD}"


@contextmanager
def open_parts(
    folder: Path,
    command: str,
    facts: Mapping[str, Any],
    results: Sequence[Path] = (),
    shared: bool = False,
    advice: str = "choose another --out",
) -> Iterator[Parts]:
    """Hold a folder of parts, made if missing; a first start that fails before it has finished a part leaves nothing.

    Args:
        command: that fills it, as users call it.
        facts: all that its parts are made from, as JSON has it.
        results: files that are made of the parts; the last of them, a manifest, says that all is done. None may be
            there before the first start.
        shared: whether other processes may have the folder, too, such as those of an array job.
        advice: how to have the work elsewhere.

    Raises:
        UserError: a result is there already, the folder is not this command's or is made from something else, or
            another command is using it.
    """
    mark = folder / MARK
    facts = json.loads(json.dumps({"command": command, **facts}))
    parts = Parts(folder, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())
    is_new, is_parent_new = not mark.exists(), not folder.parent.exists()
    if is_new:
        _check_free(folder, command, results, advice)

    with hold(folder / _LOCK, "share" if shared else "refuse", f"{folder}: another command is using it"):
        with hold(folder / _BEGIN, "wait") if shared else nullcontext():
            if not mark.exists():  # another command may have ended since
                _check_free(folder, command, results, advice)
            differences = _differences(mark, facts)
            if differences and (not parts.is_empty or any(map(os.path.lexists, results)) or shared):
                raise UserError(
                    f"{folder}: made from something else:\n{differences}\nNothing was changed: repeat the command that "
                    f"began it, remove the folder, or {advice}."
                )
            if differences or not mark.exists():
                write_checked(mark, {"facts": facts})
        try:
            yield parts
        except BaseException:
            if is_new and not shared and folder.exists() and parts.is_empty:
                for path in reversed(results):
                    path.unlink(missing_ok=True)
                parts.remove()
                with suppress(OSError):
                    if is_parent_new:
                        folder.parent.rmdir()
            raise


def _check_free(folder: Path, command: str, results: Sequence[Path], advice: str) -> None:
    for path in results:
        if os.path.lexists(path):
            raise UserError(f"{path}: is there already: move it away, or {advice}")
    there = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if strange := sorted(there - {_LOCK, _BEGIN, MARK, f"{MARK}.tmp"}):
        raise UserError(
            f"{folder}: expected a folder of finished parts that {command} made, found one with {first_names(strange)} "
            f"and without its file {MARK}: move it away, or {advice}"
        )


def _differences(mark: Path, facts: Mapping[str, Any]) -> str:
    """What the parts are made from instead, a line each fact; empty where it is the same, or not said yet."""
    try:
        found = (read_checked(mark) or {"facts": facts})["facts"]
    except ValueError as error:
        return f"  {mark}: {error}"
    return "\n".join(
        f"  {name}: found {found.get(name)!r:.200}, expected {facts.get(name)!r:.200}"
        for name in sorted({*found, *facts})
        if found.get(name) != facts.get(name)
    )
