"""Stages of a preprocessing run: what is finished is found again, and another run's folder is left alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import FileStamp, write_json

log = logging.getLogger(__name__)

_FOLDER = "stages"


@dataclass
class StageOutput:
    """What a stage wrote (paths relative to the run's folder) and its figures, which JSON can hold."""

    files: dict[str, FileStamp] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


class Stages:
    """The stages of one run in one folder; a context manager that keeps a second process out.

    `<folder>/stages/run.json` holds the run's parameters and is written first; `<folder>/stages/<name>.json` is a
    stage's stamp, written when its files have their final names. A stamp counts while the stage's parameters and inputs
    are the same and its files have the sizes written in it.

    Args:
        folder: the run's folder, made if missing.
        parameters: everything that decides the output; what does not (numbers of workers) stays out.
        final: name of the file that marks the folder as complete; it is removed before any stage runs.
        reserved: names in the folder that the run will use.
        overwrite: whether to remove an earlier run's files and begin anew.

    Raises:
        UserError: on entry, if the folder holds a run with other parameters or files of the reserved names that no run
            made, or if another process is at work in it.
    """

    def __init__(
        self, folder: Path, parameters: Mapping[str, Any], final: str, reserved: Iterable[str], overwrite: bool = False
    ) -> None:
        self.folder = folder
        self.ran: list[str] = []
        self._parameters = json.loads(json.dumps(parameters))
        self._final = folder / final
        self._reserved = tuple(reserved)
        self._overwrite = overwrite

    def __enter__(self) -> Stages:
        run_file = self.folder / _FOLDER / "run.json"
        if not run_file.exists():
            self._refuse_foreign_files()
        self._take_lock()
        try:
            if run_file.exists() and self._overwrite:
                self._remove_run(run_file)
            if run_file.exists():
                self._refuse_other_run(run_file)
            else:
                write_json(run_file, self._parameters)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.close()

    def run(
        self, name: str, parameters: Mapping[str, Any], inputs: Iterable[FileStamp], work: Callable[[], StageOutput]
    ) -> StageOutput:
        """Return the output of a finished stage, or do its work and stamp it.

        Args:
            parameters: what the output depends on, besides the content of `inputs`.
            work: writes files under final names (through `NewFile`) and returns their stamps.
        """
        fingerprint = _fingerprint([name, dict(parameters), [stamp.sha256 for stamp in inputs]])
        found = self._finished(name, fingerprint)
        if found is not None:
            log.info("%s: found finished", name)
            return found
        self._final.unlink(missing_ok=True)
        output = work()
        write_json(self._stamp_file(name), {"fingerprint": fingerprint, **asdict(output)})
        self.ran.append(name)
        return output

    def _stamp_file(self, name: str) -> Path:
        return self.folder / _FOLDER / f"{name}.json"

    def _finished(self, name: str, fingerprint: str) -> StageOutput | None:
        stamp = _read(self._stamp_file(name))
        if stamp is None or stamp.get("fingerprint") != fingerprint:
            return None
        files = {path: FileStamp(**file) for path, file in stamp["files"].items()}
        whole = all(_size(self.folder / path) == file.size for path, file in files.items())
        return StageOutput(files, stamp["result"]) if whole else None

    def _refuse_foreign_files(self) -> None:
        foreign = [name for name in self._reserved if (self.folder / name).exists()]
        if foreign:
            raise UserError(
                f"{self.folder}: {', '.join(foreign)} exist there, but no {_FOLDER}/run.json that says what made them. "
                "Nothing was changed: choose another --out, or remove them."
            )

    def _refuse_other_run(self, run_file: Path) -> None:
        there = _read(run_file) or {}
        if there == self._parameters:
            return
        keys = sorted({*there, *self._parameters})
        differing = [key for key in keys if there.get(key) != self._parameters.get(key)]
        lines = [f"  {key}: found {there.get(key)!r}, expected {self._parameters.get(key)!r}" for key in differing]
        raise UserError(
            f"{self.folder}: holds a run with other parameters:\n"
            + "\n".join(lines)
            + "\nNothing was changed: choose another --out, or give --overwrite to replace that run."
        )

    def _take_lock(self) -> None:
        path = self.folder / _FOLDER / "lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.open("a")
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror}. Choose another --out.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise UserError(f"{self.folder}: another process is at work there: wait for it, or stop it") from error

    def _remove_run(self, run_file: Path) -> None:
        """Remove the files that an earlier run's stamps name: the final file first, run.json last."""
        self._final.unlink(missing_ok=True)
        for path in sorted(run_file.parent.glob("*.json")):
            if path != run_file:
                for name in (_read(path) or {}).get("files", ()):
                    (self.folder / name).unlink(missing_ok=True)
                path.unlink()
        run_file.unlink()


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
