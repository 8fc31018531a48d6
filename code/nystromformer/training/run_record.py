"""The folder of a run: one writer at a time, and an id by which the run knows its own files."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from nystromformer.errors import UserError
from nystromformer.files.reading import JSON_BYTES, read_bytes
from nystromformer.files.writing import write_json
from nystromformer.training.archive import read_facts

LOCK_FILE = "run.lock"


class RunLock:
    """Holds a folder for one run, until the process ends however it ends; processes that it forked hold nothing.

    Raises (on entry):
        UserError: another run holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        # Where the disk has no locks, the soft one would be a file that a killed run leaves behind for good.
        self._lock = FileLock(self.path, blocking=False, fallback_to_soft=False, on_acquired=_sign)

    def __enter__(self) -> "RunLock":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            holder = self.path.read_text().strip() or "unknown"
            raise UserError(
                f"{self.path.parent}: a run is active here already (process {holder}). Wait for it, stop it, or use "
                "the folder of another experiment"
            ) from error
        except OSError as error:
            if error.filename is not None:
                raise UserError(f"{self.path.parent}: cannot be written: {error.strerror or error}") from error
            raise UserError(
                f"{self.path}: cannot be locked ({error.strerror or error}); use a folder on another disk"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _sign(file: int) -> None:
    """Write into the locked file who holds it, for those who come later."""
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)


RECORD = "run.json"
_FORMAT = 2
_NOT_OF_ITS_IDENTITY = {"version", "division", "set_by_flag", "run_id"}
"""Facts that do not tell one run from another."""


def id_of(facts: Mapping[str, Any]) -> str:
    """The id of a run that begins with these facts: equal ones train the same, so that they may share it."""
    decisive = {key: value for key, value in facts.items() if key not in _NOT_OF_ITS_IDENTITY}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RunRecord:
    """What a folder knows of its run."""

    run_id: str
    _judged: dict[tuple[str, int, int, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def owns(self, facts: Mapping[str, Any]) -> bool:
        """Whether a checkpoint that says this is one of the run."""
        return bool(facts.get("run_id") == self.run_id)

    def is_own(self, path: Path) -> bool:
        """Whether the file is one of the run, which one that cannot be read never is; read once per content."""
        try:
            status = path.stat()
            key = (path.name, status.st_size, status.st_mtime_ns, status.st_ino)
            if key not in self._judged:
                self._judged[key] = self.owns(facts := read_facts(path)) and bears_its_name(path, facts)
            return self._judged[key]
        except (OSError, UserError):
            return False

    def write(self, folder: Path) -> None:
        """Write `run.json`, whole or not at all."""
        write_json(folder / RECORD, {"format": _FORMAT, "run_id": self.run_id})


def read_record(folder: Path) -> RunRecord | None:
    """The record of a folder; None where no run began there.

    Raises:
        UserError: the file is not one of these, or cannot be read.
    """
    path = folder / RECORD
    try:
        data = json.loads(read_bytes(path, JSON_BYTES, "a run's id"))
        run_id = data["run_id"]
        if data["format"] != _FORMAT or not run_id or not isinstance(run_id, str):
            raise ValueError("unexpected keys or values")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: damaged: expected the id of the folder's run ({error}). Remove it: where all checkpoints of the "
            "folder are of one run, the next start writes it again."
        ) from error
    return RunRecord(run_id)


def kept_record(folder: Path, content: Mapping[str, Any]) -> RunRecord:
    """The record of a folder whose run goes on from a checkpoint of this content; where there is none, one with that
    checkpoint's id.

    Raises:
        UserError: the folder's cannot be read.
    """
    return read_record(folder) or RunRecord(content["run_id"])


def bears_its_name(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has the name that its run gave it: the end of its epoch, or its step."""
    epoch, step = facts.get("epoch"), facts.get("step")
    if not isinstance(epoch, int) or not isinstance(step, int):
        return False
    return path.stem in (f"cp-{epoch:04d}", f"cp-{epoch:04d}-step-{step:08d}")
