"""The folder of a run: one writer at a time, `cp-NNNN.cp` (everything) and `cp-NNNN.model` (weights) of each epoch, and
the last few checkpoints in between. What is read may be another run's: who reads it compares its facts.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from nystromformer.errors import UserError
from nystromformer.files.writing import sync_folder
from nystromformer.training.archive import (
    STATE,
    TEMPORARY,
    UnreadableCheckpoint,
    read_checkpoint,
    read_facts,
    write_checkpoint,
)

T = TypeVar("T")

_NAME = re.compile(r"cp-(\d{4,18})(?:-step-(\d{1,18}))?\.cp")
_WEIGHTS = re.compile(r"cp-(\d{4,18})\.(model|cp)")
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
            raise UserError(f"{self.path}: cannot be written or locked: {error.strerror or error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def _sign(file: int) -> None:
    """Write into the locked file who holds it, for those who come later."""
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)


@dataclass(frozen=True, order=True)
class CheckpointFile:
    """A `.cp` file of a run, ordered by how far the run had come."""

    epoch: int
    step: float
    """The step of one written between epochs; inf for an epoch's end."""
    path: Path


def epoch_name(epoch: int) -> str:
    """`cp-0099` for epoch 99 (epochs count from 0)."""
    return f"cp-{epoch:04d}"


def between_name(epoch: int, step: int) -> str:
    """Name of a checkpoint written within an epoch, at a step."""
    return f"{epoch_name(epoch)}-step-{step:08d}"


def weights_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What of a `.cp` file's content stands in the `.model` file: no state, and no variables of an objective, which
    only training has a use for.
    """
    weights = {name: weight for name, weight in content["model"].items() if not name.startswith("objective.")}
    return {**_plain({key: value for key, value in content.items() if key not in STATE}), "model": weights}


def _plain(value: Any) -> Any:
    """The same plain data, in which equal texts are one object: a pickle refers to an object that comes again, so that
    only then a run that was resumed writes the same bytes as one that was not."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return sys.intern(value) if isinstance(value, str) else value


def find_checkpoints(folder: Path) -> list[CheckpointFile]:
    """The folder's `.cp` files, oldest first."""
    checkpoints = []
    for path in folder.glob("cp-*.cp"):
        if match := _NAME.fullmatch(path.name):
            step = float("inf") if match[2] is None else int(match[2])
            checkpoints.append(CheckpointFile(int(match[1]), step, path))
    return sorted(checkpoints)


def find_weights(folder: Path) -> dict[int, Path]:
    """The weights of each epoch, by its number: `cp-NNNN.model` or else `cp-NNNN.cp`."""
    weights: dict[int, Path] = {}
    for path in sorted(folder.glob("cp-*")):
        match = _WEIGHTS.fullmatch(path.name)
        if match and (match[2] == "model" or int(match[1]) not in weights):
            weights[int(match[1])] = path
    return dict(sorted(weights.items()))


def choose_weights(folder: Path, wanted: str, several: bool = False) -> list[Path]:
    """The files of "last", a number or, where several may be asked for, "all".

    Raises:
        UserError: nothing there, or another word; lists the numbers that exist.
    """
    weights = find_weights(folder)
    if not weights:
        raise UserError(f"{folder}: no checkpoint of a finished epoch (cp-NNNN.model) is there; pretrain first")
    if wanted == "last":
        return [weights[max(weights)]]
    if wanted == "all" and several:
        return list(weights.values())
    if wanted.isdecimal() and len(wanted) < 19 and int(wanted) in weights:
        return [weights[int(wanted)]]
    numbers = ", ".join(map(str, weights))
    words = "last, all" if several else "last"
    raise UserError(f"{folder}: expected --checkpoint {words} or one of {numbers}; found {wanted!r}")


def newest_facts(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """What the newest checkpoint of a folder, `.cp` or `.model`, says beside its tensors, which are not read.

    Returns:
        The file and its plain data; None where there is none, or none that can be read: what reads one says why.
    """
    ends = reversed(find_weights(folder).values())
    for path in [*(checkpoint.path for checkpoint in reversed(find_checkpoints(folder))), *ends]:
        try:
            return path, read_facts(path)
        except UserError:
            continue
    return None


def read_latest(folder: Path, report: Callable[[str], object]) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole `.cp` of a folder; None where there is none at all.

    Args:
        report: called with a sentence for each file that is passed over.

    Raises:
        UserError: there are checkpoints and none can be read, or weights alone, which a new run would overwrite.
    """
    checkpoints = find_checkpoints(folder)
    for checkpoint in reversed(checkpoints):
        try:
            return checkpoint.path, read_checkpoint(checkpoint.path)
        except UnreadableCheckpoint as error:
            report(f"{error}; going back to the checkpoint before it")
    if checkpoints:
        raise UserError(
            f"{folder}: none of its {len(checkpoints)} checkpoints can be read. Move them away to start from the "
            "beginning."
        )
    if weights := find_weights(folder):
        raise UserError(
            f"{folder}: holds weights ({weights[max(weights)].name}) but no .cp to resume from; a new run would "
            "overwrite them. Put the .cp back, or start in another folder (with from_cp to begin from these weights)."
        )
    return None


def complete_weights(content: Mapping[str, Any], path: Path) -> None:
    """Write the `.model` of an epoch's `.cp`, where a kill came between the two."""
    if path.stem == epoch_name(content["epoch"]) and not path.with_suffix(".model").exists():
        write_checkpoint(weights_of(content), path.with_suffix(".model"))


def reopen_epoch(content: Mapping[str, Any], path: Path, steps_per_epoch: int) -> None:
    """Make a checkpoint that ended a run in the midst of an epoch one between epochs, for a run that goes on after all:
    those of the rest of the epoch are the newer ones."""
    if path.stem == epoch_name(content["epoch"]) and content["step"] % steps_per_epoch:
        path.with_suffix(".model").unlink(missing_ok=True)
        path.replace(path.with_name(f"{between_name(content['epoch'], content['step'])}.cp"))
        sync_folder(path.parent)


def remove_old(
    folder: Path,
    keep: int,
    epochs: Collection[int] | None = None,
    keep_epochs: int | None = None,
    newest: Path | None = None,
) -> None:
    """Remove the checkpoints that newer ones, which are whole already, make superfluous.

    One between epochs stays until the end of its epoch has one, and as long as it is among the last `keep`.

    Args:
        epochs: where given, only the weights of these epochs stay, and the last `keep` `.cp` files of either kind.
        keep_epochs: so many of the last epochs stay, `.cp` and `.model`; None: all.
        newest: the `.cp` at which the run stands. Those after it are damaged, or it would not have gone back to this
            one: they go, too.
    """
    found = find_checkpoints(folder)
    upto = next((file for file in found if file.path == newest), None)
    checkpoints = [file for file in found if upto is None or file <= upto]
    ends = [file for file in checkpoints if file.step == float("inf")]
    over = ends[-1].epoch if ends else -1
    between = [file for file in checkpoints if file.step != float("inf") and file.epoch > over]
    staying = _last(keep, sorted([*ends, *between])) if epochs is not None else [*ends, *_last(keep, between)]
    weights = {epoch: path for epoch, path in find_weights(folder).items() if path.suffix == ".model"}
    if epochs is not None:
        leaving = weights.keys() - set(epochs)
    else:
        oldest = 0
        if keep_epochs is not None and ends:  # never one after the last whole state, without which no run goes on
            oldest = min(_last(keep_epochs, sorted({*(file.epoch for file in ends), *weights}))[0], over)
        staying = [file for file in staying if file.epoch >= oldest]
        leaving = {epoch for epoch in weights if epoch < oldest}
    for path in [file.path for file in found if file not in staying] + [weights[epoch] for epoch in sorted(leaving)]:
        path.unlink(missing_ok=True)


def _last(count: int, items: Sequence[T]) -> Sequence[T]:
    """The last `count` items, which may be none."""
    return items[max(0, len(items) - count) :]


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed run left half written. Only with the folder's lock held."""
    for path in folder.glob(f"cp-*{TEMPORARY}"):
        path.unlink(missing_ok=True)
