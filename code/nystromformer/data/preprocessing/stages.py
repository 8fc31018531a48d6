"""Stages of a preprocessing run: what is finished is found again, and another run's folder is left alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked, read_checked, write_checked
from nystromformer.files.writing import FileStamp, sha256_of, writing
from nystromformer.wording import first_names, number_of

log = logging.getLogger(__name__)

_FOLDER = "stages"
RUN_FILE = f"{_FOLDER}/run.json"
"""By which a folder of a run is told."""


@dataclass
class StageOutput:
    """What a stage wrote (paths relative to the run's folder) and its figures, which JSON can hold."""

    files: dict[str, FileStamp] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Stamp:
    fingerprint: str
    output: StageOutput

    __pydantic_config__ = STRICT


class Stamps:
    """The stamps of finished stages in `<folder>/stages/<name>.json`; it pickles, for processes that share a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str, fingerprint: str, verify: bool = False) -> StageOutput | None:
        """A stage's output, while its fingerprint is the same and its files have the sizes (content) stamped."""
        stamp = self._read(name)
        if stamp is None or stamp.fingerprint != fingerprint:
            return None
        for name, file in stamp.output.files.items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != file.size or (verify and sha256_of(path) != file.sha256):
                return None
        return stamp.output

    def write(self, name: str, fingerprint: str, output: StageOutput) -> None:
        """Stamp a stage whose files have their final names."""
        write_checked(self._file(name), asdict(_Stamp(fingerprint, output)))

    def remove(self, name: str) -> None:
        """Remove a stage's files, its stamp and its lock."""
        stamp = self._read(name)
        for path in stamp.output.files if stamp else ():
            (self.folder / path).unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)
        self.lock_file(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Stages that have a stamp, be it damaged."""
        return sorted(path.stem for path in (self.folder / _FOLDER).glob("*.json") if path != self.folder / RUN_FILE)

    def lock_file(self, name: str) -> Path:
        """The lock of who works at a stage."""
        return self.folder / _FOLDER / f"{name}.lock"

    def _read(self, name: str) -> _Stamp | None:
        """A stage's stamp; None where there is none, or a damaged one, whose stage is done again."""
        try:
            data = read_checked(self._file(name))
            return None if data is None else checked(_Stamp, data)
        except ValueError:
            return None

    def _file(self, name: str) -> Path:
        return self.folder / _FOLDER / f"{name}.json"


class Stages:
    """The stages of one run in one folder; a context manager.

    `<folder>/stages/run.json`, the run's parameters, is written first. Processes of the same run share the folder: they
    claim its stages one by one (`units.run_units`), and one of them ends the run, by `exclude_others`. A process with
    other parameters replaces a run of which nothing is finished; one that has finished a stage, which may have taken
    hours, it replaces with `overwrite` only.

    Args:
        folder: the run's folder, made if missing.
        parameters: everything that decides the output; what does not (numbers of workers) stays out.
        final: name of the file that marks the folder as complete; it is removed before any stage runs.
        reserved: names in the folder that the run will use.
        advice: what to do where the folder holds a run with other parameters.

    Raises:
        UserError: on entry, if the folder holds another run that is not replaced, or files of the reserved names that
            no run made, or if a process with which it cannot be shared is at work in it.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        final: str,
        reserved: Iterable[str],
        overwrite: bool = False,
        advice: str = "choose another --out, repeat that run's own command, or give --overwrite to remove its output",
    ) -> None:
        self.folder = folder
        self.stamps = Stamps(folder)
        self._parameters = json.loads(json.dumps(parameters))
        self._run_file = folder / RUN_FILE
        self._final = folder / final
        self._reserved = tuple(reserved)
        self._overwrite = overwrite
        self._advice = advice

    def __enter__(self) -> Stages:
        foreign = [name for name in self._reserved if (self.folder / name).exists()]
        if foreign and not self._run_file.exists():
            raise UserError(
                f"{self.folder}: {', '.join(foreign)} exist there, but no {RUN_FILE} that says which command wrote "
                "them. Nothing was changed: choose another output folder, or remove them."
            )
        path = self.folder / _FOLDER / "lock"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # readable too, which network file systems ask of a shared lock
            self._lock = path.open("a+")
        try:
            self._begin()
        except BaseException:
            self._lock.close()
            raise
        return self

    def _begin(self) -> None:
        alone = self._try_lock(fcntl.LOCK_EX)
        if not alone and not self._overwrite:
            self._wait_for(fcntl.LOCK_SH, "another process, which is beginning or ending the run")
        is_this = self._is_this_run()
        if not alone and (self._overwrite or not is_this):
            raise UserError(f"{self.folder}: another process is using it: wait for it, or stop it")
        if not is_this:
            self._replace_run()
        if alone:
            self._wait_for(fcntl.LOCK_SH, "another process, which is ending the run")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._lock.close()

    def exclude_others(self) -> None:
        """Keep other processes out, after waiting for them; one of them may have ended the run by then."""
        self._wait_for(fcntl.LOCK_EX, "other processes, which are at work there")

    def unfinish(self) -> None:
        """Declare the folder incomplete, before anything in it changes."""
        self._final.unlink(missing_ok=True)

    def _is_this_run(self) -> bool:
        """Whether the folder holds this run, and not one that may be replaced.

        Raises:
            UserError: it holds another, which may not.
        """
        if not self._run_file.exists():
            return False
        is_same = self._read_run() == self._parameters
        if self._overwrite:  # a finished one is made anew, one that was interrupted goes on
            return is_same and not self._final.exists()
        if is_same:
            return True
        finished = self.stamps.names()
        if self._final.exists() or finished:
            done = f"{number_of(len(finished), 'stage')} done: {first_names(finished)}"
            what = "a run" if self._final.exists() else f"an unfinished run ({done})"
            raise UserError(
                f"{self.folder}: holds {what} with other parameters:\n{self._differences()}\nNothing was changed: "
                f"{self._advice}."
            )
        return False

    def _read_run(self) -> dict[str, Any] | None:
        try:
            parameters = read_checked(self._run_file)
        except ValueError:
            return None
        return parameters if isinstance(parameters, dict) else None

    def _differences(self) -> str:
        found = self._read_run()
        if found is None:
            return f"  {self._run_file} is damaged"
        keys = sorted({*found, *self._parameters})
        lines = {key: f"  {key}: found {found.get(key)!r}, expected {self._parameters.get(key)!r}" for key in keys}
        return "\n".join(lines[key] for key in keys if found.get(key) != self._parameters.get(key))

    def _replace_run(self) -> None:
        """Begin this run, after removing another's files: those that its stamps name, and those of reserved names."""
        if self._run_file.exists():
            if not self._overwrite:
                log.warning(
                    "%s: an unfinished run with other parameters is replaced:\n%s", self.folder, self._differences()
                )
            self._final.unlink(missing_ok=True)
            for name in self.stamps.names():
                self.stamps.remove(name)
            for name in self._reserved:
                path = self.folder / name
                for leftover in (path.with_name(f"{path.name}.tmp"), *path.glob("*.tmp")):
                    leftover.unlink(missing_ok=True)
                if path.is_dir():
                    with suppress(OSError):
                        path.rmdir()
                else:
                    path.unlink(missing_ok=True)
        # Replaced, not removed first: without the file, what is left in the folder would be taken for foreign.
        write_checked(self._run_file, self._parameters)

    # Held by many at once, or by one alone to begin or end the run, and changed from one to the other: that is flock's
    # own, which filelock has only for one at a time.

    def _wait_for(self, kind: int, whom: str) -> None:
        if not self._try_lock(kind):
            log.info("%s: waiting for %s", self.folder, whom)
            fcntl.flock(self._lock, kind)

    def _try_lock(self, kind: int) -> bool:
        try:
            fcntl.flock(self._lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def fingerprint_of(value: Any) -> str:
    """SHA-256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
