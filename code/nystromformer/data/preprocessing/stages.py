"""Stages of a preprocessing run: what is finished is found again, and another run's folder is left alone."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from filelock import FileLock, Timeout

from nystromformer.data.sealed import unsealed, write_sealed
from nystromformer.errors import UserError
from nystromformer.files import FileStamp, NewFile, sha256_of, write_json
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

_FOLDER = "stages"
RUN_FILE = f"{_FOLDER}/run.json"
"""By which a folder of a run is told."""
_FAILED_FILE = f"{_FOLDER}/failed"
"""Says that the run ended by an error, which other parameters may be the answer to."""
_SECONDS_BETWEEN_TRIES = 0.5
_NAMED = 5
"""Stages that a message names."""
_Content = dict[Path, tuple[int, int, int]]
"""Files and their inodes, sizes and times."""


@dataclass
class StageOutput:
    """What a stage wrote (paths relative to the run's folder) and its figures, which JSON can hold."""

    files: dict[str, FileStamp] = field(default_factory=dict)
    result: dict[str, Any] = field(default_factory=dict)


class Stamps:
    """The stamps of finished stages in `<folder>/stages/<name>.json`; it pickles, for processes that share a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str, fingerprint: str, verify: bool = False) -> StageOutput | None:
        """A stage's output, while its parameters and inputs are the same and its files have the sizes stamped.

        Args:
            verify: whether the files' content has to be the stamped one, too.
        """
        stamp = self._stamp(name)
        if stamp is None or stamp[0] != fingerprint:
            return None
        output = stamp[1]
        for path, file in output.files.items():
            if _size(self.folder / path) != file.size or (verify and sha256_of(self.folder / path) != file.sha256):
                return None
        return output

    def write(self, name: str, fingerprint: str, output: StageOutput) -> None:
        """Stamp a stage whose files have their final names."""
        write_sealed(self._file(name), {"fingerprint": fingerprint, **asdict(output)})

    def remove(self, name: str) -> None:
        """Remove a stage's files, its stamp and its lock."""
        stamp = self._stamp(name)
        for path in stamp[1].files if stamp else ():
            (self.folder / path).unlink(missing_ok=True)
        self._file(name).unlink(missing_ok=True)
        self._lock(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Stages that have a stamp or a lock."""
        return sorted({*self.finished(), *(path.stem for path in (self.folder / _FOLDER).glob("*.lock"))})

    def finished(self) -> list[str]:
        """Stages that have a stamp, be it damaged: something was finished there."""
        return sorted({path.stem for path in (self.folder / _FOLDER).glob("*.json")} - {"run"})

    @contextmanager
    def claim(self, name: str, waiting: Callable[[int], object] | None = None) -> Iterator[bool]:
        """Whether this process alone may work at a stage.

        Args:
            waiting: waits for that, and is called with 0 every so often meanwhile: what it raises ends the waiting.
        """
        lock = FileLock(self._lock(name))
        # not acquired by waiting in it: a worker, which is deaf to Ctrl-C, would hang there
        while not _acquired(lock):
            if waiting is None:
                yield False
                return
            waiting(0)
            time.sleep(_SECONDS_BETWEEN_TRIES)
        try:
            yield True
        finally:
            lock.release()

    def _stamp(self, name: str) -> tuple[str, StageOutput] | None:
        """A stage's fingerprint and output; None where there is no stamp, or a damaged one."""
        stamp = _read(self._file(name))
        if stamp is None:
            return None
        try:
            stamp = unsealed(self._file(name), stamp, "")
            files = {path: FileStamp(**file) for path, file in stamp["files"].items()}
            return stamp["fingerprint"], StageOutput(files, dict(stamp["result"]))
        except (UserError, AttributeError, KeyError, TypeError, ValueError):
            return None

    def _file(self, name: str) -> Path:
        return self.folder / _FOLDER / f"{name}.json"

    def _lock(self, name: str) -> Path:
        return self.folder / _FOLDER / f"{name}.lock"


class Stages:
    """The stages of one run in one folder; a context manager that keeps a second process out.

    `<folder>/stages/run.json` holds the run's parameters and is written first; `<folder>/stages/<name>.json` is a
    stage's stamp, written when its files have their final names. A stamp counts while the stage's parameters and inputs
    are the same and its files have the sizes written in it.

    A run of which nothing is finished is replaced by one with other parameters: what failed shall not stand in the way
    of the corrected command. One that has finished a stage is not, for that stage may have taken hours.

    A shared run lets other processes of the same run in after `share`: these claim its stages one by one through
    `stamps`, and one of them ends the run in `alone`.

    Args:
        folder: the run's folder, made if missing.
        parameters: everything that decides the output; what does not (numbers of workers) stays out.
        final: name of the file that marks the folder as complete; it is removed before any stage runs.
        reserved: names in the folder that the run will use.
        overwrite: whether to remove an earlier run's files and begin anew.
        shared: whether other processes of this run may work in the folder at the same time.
        correctable: whether a run that ended by an error of its first start, with nobody else's work in it, may be
            replaced by one with other parameters, whatever it had finished: these may be the answer to the error.

    Raises:
        UserError: on entry, if the folder holds a run with other parameters that has finished a stage, or files of the
            reserved names that no run made, or if a process is at work in it with which it cannot be shared.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        final: str,
        reserved: Iterable[str],
        overwrite: bool = False,
        shared: bool = False,
        correctable: bool = False,
    ) -> None:
        self.folder = folder
        self.stamps = Stamps(folder)
        self.ran: list[str] = []
        self._shared = shared
        self._parameters = json.loads(json.dumps(parameters))
        self._final = folder / final
        self._reserved = tuple(reserved)
        self._overwrite = overwrite
        self._finished: tuple[bytes, _Content] | None = None
        self._finished_before: list[str] = []
        self._correctable = correctable

    def __enter__(self) -> Stages:
        run_file = self.folder / RUN_FILE
        if not run_file.exists():
            self._refuse_foreign_files()
        self._locks = ExitStack()
        try:
            # processes that share a run come in one after the other
            self._turn = self._open_lock("turn") if self._shared else None
            self._lock = self._open_lock("lock")
            self._begin(run_file)
        except BaseException:
            self._locks.close()
            raise
        return self

    def _begin(self, run_file: Path) -> None:
        if self._turn is not None:
            self._wait_for(self._turn, fcntl.LOCK_EX, "another process, which is preparing the run")
        if self._shared and self._goes_on(run_file):
            self._wait_for(self._lock, fcntl.LOCK_SH, "another process, which is ending the run")
        elif not _locked(self._lock, fcntl.LOCK_EX):
            raise UserError(f"{self.folder}: another process is at work there: wait for it, or stop it")
        if not self._goes_on(run_file):
            if run_file.exists():
                if not self._overwrite:
                    log.warning(
                        "%s: %s with other parameters is replaced:\n%s",
                        *(self.folder, "a failed run" if self._has_failed else "an unfinished run"),
                        self._differences(run_file),
                    )
                self._remove_run()
            # replaces an earlier run's at once: without the file, what is left in the folder would be taken for foreign
            write_json(run_file, self._parameters)
        self._finished_before = self.stamps.finished()
        (self.folder / _FAILED_FILE).unlink(missing_ok=True)
        self._begun = self._identity()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is not None:
                self._finish_again()
            if isinstance(error, UserError) and not isinstance(error.__cause__, OSError):  # as of a full disk
                self._note_failure()
        finally:
            self._locks.close()

    def _note_failure(self) -> None:
        """Let other parameters replace what this command alone has done: nobody else's work, and none of before."""
        if self._correctable and not self._finished_before and _locked(self._lock, fcntl.LOCK_EX):
            with suppress(OSError):
                (self.folder / _FAILED_FILE).touch()

    def share(self) -> None:
        """Let other processes of this run in."""
        assert self._turn is not None, "the run was opened as a shared one"
        self._wait_for(self._lock, fcntl.LOCK_SH, "another process, which is ending the run")
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def alone(self) -> None:
        """Keep other processes out again, after waiting for them; one of them may have ended the run by then.

        Raises:
            UserError: another process has replaced the run meanwhile.
        """
        self._wait_for(self._lock, fcntl.LOCK_EX, "other processes, which are at work there")
        if self._identity() != self._begun:
            raise UserError(f"{self.folder}: another process has replaced the run: start the command again")

    def unfinish(self) -> None:
        """Declare the folder incomplete, before anything in it changes."""
        if self._final.is_file():
            self._finished = self._final.read_bytes(), self._content()
        self._final.unlink(missing_ok=True)

    def _finish_again(self) -> None:
        """Declare the folder complete as it was, where what failed had changed nothing in it: a corpus that is not
        there any more takes nothing from what was made of it."""
        if self._finished is None or self._final.exists() or not _locked(self._lock, fcntl.LOCK_EX):
            return
        final, content = self._finished
        if self._content() == content:
            with suppress(UserError), NewFile(self._final) as file:
                file.write(final)

    def _content(self) -> _Content:
        """The folder's files but for stamps and the final one, by what tells whether they were written to."""
        files = {path for path in self.folder.rglob("*") if path.is_file() and path.parent.name != _FOLDER}
        states = {path: path.stat() for path in files - {self._final}}
        return {path: (state.st_ino, state.st_size, state.st_mtime_ns) for path, state in states.items()}

    def run(
        self, name: str, parameters: Mapping[str, Any], inputs: Iterable[FileStamp], work: Callable[[], StageOutput]
    ) -> StageOutput:
        """Return the output of a finished stage, or do its work and stamp it.

        Args:
            parameters: what the output depends on, besides the content of `inputs`.
            work: writes files under final names (through `NewFile`) and returns their stamps.
        """
        fingerprint = fingerprint_of([name, dict(parameters), [stamp.sha256 for stamp in inputs]])
        finished = self.stamps.find(name, fingerprint, verify=True)
        if finished is not None:
            log.info("%s: found finished", name)
            return finished
        self.unfinish()
        output = work()
        self.stamps.write(name, fingerprint, output)
        self.ran.append(name)
        return output

    def _refuse_foreign_files(self) -> None:
        foreign = [name for name in self._reserved if (self.folder / name).exists()]
        # another process may have begun the run just now
        if foreign and not (self.folder / RUN_FILE).exists():
            raise UserError(
                f"{self.folder}: {', '.join(foreign)} exist there, but no {RUN_FILE} that says what made them. "
                "Nothing was changed: choose another --out, or remove them."
            )

    def _goes_on(self, run_file: Path) -> bool:
        """Whether the folder holds this run, which goes on; another is replaced.

        Raises:
            UserError: another, of which something is finished, which did not fail, and which shall not be overwritten.
        """
        if self._overwrite or not run_file.exists():
            return False
        if _read(run_file) == self._parameters:
            return True
        if self._final.exists():
            raise UserError(
                f"{self.folder}: holds a run with other parameters:\n{self._differences(run_file)}\n"
                "Nothing was changed: choose another --out, or give --overwrite to replace that run."
            )
        finished = self.stamps.finished()
        if finished and not self._has_failed:
            raise UserError(self._unfinished(run_file, finished))
        return False

    @property
    def _has_failed(self) -> bool:
        return (self.folder / _FAILED_FILE).is_file()

    def _unfinished(self, run_file: Path, finished: list[str]) -> str:
        """What to say where these stages of another run are done."""
        kind, instead = "other", "go on with that run by its own parameters, "
        if _read(run_file) is None:
            kind, instead = "unknown", ""
        done = f"{number_of(len(finished), 'stage')} {'is' if len(finished) == 1 else 'are'} done"
        named = ", ".join([*finished[:_NAMED], *(["…"] if finished[_NAMED:] else [])])
        return (
            f"{self.folder}: holds an unfinished run with {kind} parameters, of which {done} ({named}):\n"
            f"{self._differences(run_file)}\n"
            f"Nothing was changed: {instead}choose another --out, or give --overwrite to remove what it has done."
        )

    def _differences(self, run_file: Path) -> str:
        there = _read(run_file)
        if there is None:
            return f"  {run_file} is damaged"
        keys = sorted({*there, *self._parameters})
        differing = [key for key in keys if there.get(key) != self._parameters.get(key)]
        return "\n".join(
            f"  {key}: found {there.get(key)!r}, expected {self._parameters.get(key)!r}" for key in differing
        )

    def _open_lock(self, name: str) -> TextIO:
        path = self.folder / _FOLDER / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # readable too, which network file systems ask of a shared lock
            return self._locks.enter_context(path.open("a+"))
        except OSError as error:
            raise UserError(f"{path}: cannot be written: {error.strerror or error}. Choose another --out.") from error

    def _wait_for(self, lock: TextIO, kind: int, whom: str) -> None:
        if not _locked(lock, kind):
            log.info("%s: waiting for %s", self.folder, whom)
            fcntl.flock(lock, kind)

    def _identity(self) -> tuple[int, int]:
        """What tells this run from one that replaced it."""
        run_file = (self.folder / RUN_FILE).stat()
        return run_file.st_ino, run_file.st_mtime_ns

    def _remove_run(self) -> None:
        """Remove an earlier run's files: the final one first, those that its stamps name, those of reserved names."""
        self._final.unlink(missing_ok=True)
        for name in self.stamps.names():
            self.stamps.remove(name)
        for name in self._reserved:
            path = self.folder / name
            path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
            if path.is_dir():
                # what a killed process was writing
                for unfinished in path.glob("*.tmp"):
                    unfinished.unlink()
                with suppress(OSError):
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)


def fingerprint_of(value: Any) -> str:
    """SHA-256 of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    return True


# The lock of a run is held by many at once, or by one alone to begin or end it, and goes from one to the other: that is
# flock's own, which filelock has only for one at a time.
def _locked(file: TextIO, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
