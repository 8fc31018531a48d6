"""The folder of a run: one writer at a time."""

import os
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from nystromformer.errors import UserError


class RunLock:
    """Holds a folder for one run, until the process ends however it ends; processes that it forked hold nothing.

    Raises (on entry):
        UserError: another run holds it, or the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.lock"
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
