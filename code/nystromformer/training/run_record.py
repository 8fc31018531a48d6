"""Which checkpoints of a folder are its run's own: each carries the run's id, and so does the folder's `run.json`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nystromformer.bounded import JSON_BYTES, read_bytes
from nystromformer.errors import UserError
from nystromformer.files import write_json
from nystromformer.training.archive import STATE, read_facts

RECORD = "run.json"
_FORMAT = 1
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
    adopted: frozenset[str] = frozenset()
    """Names of checkpoints of an earlier version, which carry no id, that the run went on from."""
    _known: dict[tuple[str, int, int, int], bool] = field(default_factory=dict, compare=False, repr=False)

    def owns(self, path: Path, facts: Mapping[str, Any]) -> bool:
        """Whether a checkpoint that says this is one of the run."""
        run_id = facts.get("run_id")
        if run_id is not None:
            return bool(run_id == self.run_id)
        # One that ended an epoch may have become one between epochs since.
        return any(f"{stem}{path.suffix}" in self.adopted for stem in {path.stem, *_stems(facts)})

    def is_own(self, path: Path) -> bool:
        """Whether the file is one of the run, which one that cannot be read never is; read once per content."""
        try:
            status = path.stat()
            key = (path.name, status.st_size, status.st_mtime_ns, status.st_ino)
            if key not in self._known:
                self._known[key] = self.owns(path, facts := read_facts(path)) and bears_its_name(path, facts)
            return self._known[key]
        except (OSError, UserError):
            return False

    def write(self, folder: Path) -> None:
        """Write `run.json`, whole or not at all."""
        write_json(folder / RECORD, {"format": _FORMAT, "run_id": self.run_id, "adopted": sorted(self.adopted)})


def read_record(folder: Path) -> RunRecord | None:
    """The record of a folder; None where no run of this version began there.

    Raises:
        UserError: the file is not one of these, or cannot be read.
    """
    path = folder / RECORD
    try:
        data = json.loads(read_bytes(path, JSON_BYTES, "a run's id"))
        run_id, adopted = data["run_id"], data["adopted"]
        strings = [run_id, *adopted]
        if data["format"] != _FORMAT or not run_id or not all(isinstance(item, str) for item in strings):
            raise ValueError("other keys or values than a record's")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path}: damaged: expected the id of the folder's run ({error}). Remove it: where all checkpoints of the "
            "folder are of one run, the next start writes it again."
        ) from error
    return RunRecord(run_id, frozenset(adopted))


def kept_record(folder: Path, content: Mapping[str, Any]) -> RunRecord:
    """The record of a folder whose run goes on from a checkpoint of this content; where there is none, one with that
    checkpoint's id, which adopts the files of an earlier version, without an id, that say the same of their origin.

    Raises:
        UserError: the folder's cannot be read.
    """
    record = read_record(folder)
    if record is not None:
        return record
    run_id = content.get("run_id") or id_of({key: value for key, value in content.items() if key not in STATE})
    names = (path for path in sorted(folder.glob("cp-*")) if path.suffix in (".cp", ".model"))
    return RunRecord(run_id, frozenset(path.name for path in names if _is_earlier(path, content)))


def _is_earlier(path: Path, content: Mapping[str, Any]) -> bool:
    try:
        facts = read_facts(path)
    except UserError:
        return False
    origin = ("dataset", "tokenizer", "finetuning")
    is_alike = all(facts.get(key) == content.get(key) for key in origin)
    return "run_id" not in facts and is_alike and bears_its_name(path, facts)


def bears_its_name(path: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a checkpoint has the name that its run gave it: the end of its epoch, or its step."""
    return path.stem in _stems(facts)


def _stems(facts: Mapping[str, Any]) -> tuple[str, ...]:
    epoch, step = facts.get("epoch"), facts.get("step")
    if not isinstance(epoch, int) or not isinstance(step, int):
        return ()
    return f"cp-{epoch:04d}", f"cp-{epoch:04d}-step-{step:08d}"
