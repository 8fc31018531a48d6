"""The folder of a run: one writer at a time."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import IO

from nystromformer.errors import UserError


class RunLock:
    """Holds a folder for one run, until the process ends however it ends.

    Raises (on entry):
        UserError: another run holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> "RunLock":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+")
        except OSError as error:
            raise UserError(f"{self.path.parent}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise UserError(
                f"{self.path.parent}: a run is active here already (process {holder}). Wait for it, stop it, or use "
                "another folder with --model."
            ) from error
        except OSError as error:
            self._file.close()
            raise UserError(
                f"{self.path}: cannot be locked ({error.strerror}); use a folder on another disk"
            ) from error
        # Data workers inherit the lock and may outlive a killed run by seconds; they shall not hold it.
        os.register_at_fork(after_in_child=self._file.close)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
