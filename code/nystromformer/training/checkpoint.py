"""Checkpoints: `cp-NNNN.cp` (everything) and `cp-NNNN.model` (weights) of each epoch, and the last few in between.

A checkpoint is written under a temporary name, synced and renamed: whatever bears its name is whole.
"""

import os
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.files import DISK_FULL, sync_folder
from nystromformer.training.distributed import laid_out_like
from nystromformer.wording import listed

T = TypeVar("T")

FORMAT = 1
_NAME = re.compile(r"cp-(\d{4,})(?:-step-(\d+))?\.cp")
_WEIGHTS = re.compile(r"cp-(\d{4,})\.(model|cp)")
_TEMPORARY = ".tmp"
_STATE = ("model", "optimizer", "scaler", "progress")
"""What of a checkpoint's content is the run's state; the rest are facts about it, plain data."""


class UnreadableCheckpoint(UserError):
    """A checkpoint file that is damaged: an earlier one may serve."""


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
    """What of a `.cp` file's content stands in the `.model` file."""
    return {key: value for key, value in content.items() if key not in _STATE or key == "model"}


def write_missing_weights(content: Mapping[str, Any], path: Path) -> None:
    """Write an epoch's `.model` where a kill came between it and its `.cp`."""
    weights = path.with_suffix(".model")
    if path.stem == epoch_name(content["epoch"]) and not weights.exists():
        write_checkpoint(weights_of(content), weights)


def reopen_epoch(content: Mapping[str, Any], path: Path, steps_per_epoch: int) -> None:
    """Make a checkpoint that ended a run in the midst of an epoch one between epochs, for a run that goes on after all:
    those of the rest of the epoch are the newer ones."""
    if path.stem == epoch_name(content["epoch"]) and content["step"] % steps_per_epoch:
        path.with_suffix(".model").unlink(missing_ok=True)
        path.replace(path.with_name(f"{between_name(content['epoch'], content['step'])}.cp"))
        sync_folder(path.parent)


def find_checkpoints(folder: Path) -> list[CheckpointFile]:
    """The folder's `.cp` files, oldest first."""
    checkpoints = []
    for path in folder.glob("cp-*.cp"):
        match = _NAME.fullmatch(path.name)
        if match:
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


def choose_weights(folder: Path, wanted: str) -> list[Path]:
    """The files of "last", "all" or a number.

    Raises:
        UserError: nothing there, or another word; lists the numbers that exist.
    """
    weights = find_weights(folder)
    if not weights:
        raise UserError(f"{folder}: no checkpoint of a finished epoch (cp-NNNN.model) is there; pretrain first")
    if wanted == "last":
        return [list(weights.values())[-1]]
    if wanted == "all":
        return list(weights.values())
    if wanted.isdecimal() and int(wanted) in weights:
        return [weights[int(wanted)]]
    numbers = ", ".join(map(str, weights))
    raise UserError(f"{folder}: expected --checkpoint last, all or one of {numbers}; found {wanted!r}")


def write_checkpoint(content: Mapping[str, Any], path: Path) -> None:
    """Write atomically; what stood at `path` before stays whole until the new file is.

    Raises:
        UserError: the file cannot be written (a full disk, a missing permission); nothing is left behind.
    """
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with temporary.open("wb") as file:
            torch.save(dict(content), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        temporary.unlink(missing_ok=True)
        reason = "no space left on the device" if _is_full(error) else str(error).splitlines()[0]
        raise UserError(
            f"{path}: the checkpoint could not be written: {reason}. The checkpoints before it are whole: make room "
            "and start the same command again to go on from the last one."
        ) from error


def read_checkpoint(path: Path, mmap: bool = False) -> dict[str, Any]:
    """Read a `.cp` or `.model` file; only tensors and plain data are ever loaded.

    Args:
        mmap: leave the tensors in the file, which is read for damage all the same.

    Raises:
        UnreadableCheckpoint: truncated or damaged.
        UserError: missing, not of this project, of a newer format, or a pickle with code in it (refused).
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint")
    _check_archive(path)
    return _load(path, mmap)


def _load(path: Path, mmap: bool = False) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. Only "
            f"checkpoints that this project writes are loaded. ({str(error).splitlines()[0]})"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise UnreadableCheckpoint(f"{path}: damaged: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict) or "format" not in content or "model" not in content:
        raise UserError(f'{path}: not a checkpoint of this project: expected a dict with "format" and "model"')
    if content["format"] != FORMAT:
        raise UserError(f"{path}: checkpoint format {content['format']}, this version reads format {FORMAT}")
    return content


def newest_facts(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """What the newest checkpoint of a folder, `.cp` or `.model`, says beside its tensors, which are not read.

    Returns:
        The file and its plain data; None where there is none, or none that can be read: what reads one says why.
    """
    ends = list(reversed(find_weights(folder).values()))
    for path in [*(checkpoint.path for checkpoint in reversed(find_checkpoints(folder))), *ends]:
        try:
            _check_archive(path, _damaged_facts)
            content = _load(path, mmap=True)
        except UserError:
            continue
        return path, {key: value for key, value in content.items() if key not in _STATE}
    return None


def read_latest(folder: Path, report: Any) -> tuple[Path, dict[str, Any]] | None:
    """The newest readable `.cp` of a folder; None where there is none at all. Damaged ones get a name of their own.

    Args:
        report: called with a sentence for each damaged file that is passed over.

    Raises:
        UserError: there are checkpoints and none can be read, or weights alone, which a new run would overwrite.
    """
    checkpoints = find_checkpoints(folder)
    damaged: list[Path] = []
    for candidate in reversed(checkpoints):
        try:
            content = read_checkpoint(candidate.path)
        except UnreadableCheckpoint as error:
            report(f"{error}; going back to the checkpoint before it")
            damaged.append(candidate.path)
            continue
        # Out of the way, so that they do not count as the newest, but kept.
        for path in damaged:
            path.replace(path.with_name(path.name + ".damaged"))
        return candidate.path, content
    if checkpoints:
        count = len(checkpoints)
        raise UserError(
            f"{folder}: none of its {count} checkpoints can be read. Move them away to start from the beginning."
        )
    weights = sorted(folder.glob("cp-*.model"))
    if weights:
        raise UserError(
            f"{folder}: holds weights ({weights[-1].name}) but no .cp to resume from; a new run would overwrite them. "
            "Put the .cp back, or start in another folder (with from_cp to begin from these weights)."
        )
    return None


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load weights that fit exactly.

    Raises:
        UserError: lists every missing, unexpected and differently shaped weight.
    """
    expected = model.state_dict()
    check_weights(expected, weights, source)
    model.load_state_dict({name: laid_out_like(weight, expected[name]) for name, weight in weights.items()})


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    """Check that weights fit a model's exactly.

    Raises:
        UserError: lists every missing, unexpected and differently shaped weight.
    """
    problems = [f"{name}: missing from the checkpoint" for name in expected if name not in weights]
    problems += [f"{name}: not in the model" for name in weights if name not in expected]
    problems += [
        f"{name}: the model has {tuple(expected[name].shape)}, the checkpoint {tuple(weights[name].shape)}"
        for name in expected
        if name in weights and weights[name].shape != expected[name].shape
    ]
    if problems:
        raise UserError(f"{source}: of another architecture than the model in config.json:{listed(problems)}")


def remove_old(folder: Path, keep: int, epochs: Collection[int] | None = None, keep_epochs: int | None = None) -> None:
    """Remove the checkpoints that newer ones, which are whole already, make superfluous.

    One between epochs stays until the end of its epoch has one, and as long as it is among the last `keep`.

    Args:
        epochs: where given, only the weights of these epochs stay, and the last `keep` `.cp` files of either kind.
        keep_epochs: so many of the last epochs stay, `.cp` and `.model`; None: all.
    """
    checkpoints = find_checkpoints(folder)
    ends = [other for other in checkpoints if other.step == float("inf")]
    over = ends[-1].epoch if ends else -1
    between = [other for other in checkpoints if other.step != float("inf") and other.epoch > over]
    staying = _last(keep, sorted([*ends, *between])) if epochs is not None else [*ends, *_last(keep, between)]
    weights = {epoch: path for epoch, path in find_weights(folder).items() if path.suffix == ".model"}
    if epochs is not None:
        leaving = weights.keys() - set(epochs)
    else:
        oldest = _oldest_kept({other.epoch for other in ends}, weights.keys(), keep_epochs)
        staying = [other for other in staying if other.epoch >= oldest]
        leaving = {epoch for epoch in weights if epoch < oldest}
    old = [other.path for other in checkpoints if other not in staying]
    for path in old + [weights[epoch] for epoch in sorted(leaving)]:
        path.unlink(missing_ok=True)


def _oldest_kept(ends: Collection[int], weights: Collection[int], keep: int | None) -> int:
    """The first of the last `keep` epochs; never one after the last whole state, without which no run goes on."""
    if keep is None or not ends:
        return 0
    return min(_last(keep, sorted({*ends, *weights}))[0], max(ends))


def _last(count: int, items: Sequence[T]) -> Sequence[T]:
    """The last `count` items, which may be none."""
    return items[max(0, len(items) - count) :]


def remove_weights(folder: Path) -> None:
    """Remove all weights of a finished run."""
    for path in folder.glob("cp-*.model"):
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed run left half written. Only with the folder's lock held."""
    for path in folder.glob(f"cp-*{_TEMPORARY}"):
        path.unlink(missing_ok=True)


def _damaged_facts(archive: zipfile.ZipFile) -> None:
    """Reads what is not a tensor's bytes, a small part of the file, against its checksum."""
    for name in archive.namelist():
        if name.endswith(".pkl"):
            archive.read(name)


def _check_archive(path: Path, look: Callable[[zipfile.ZipFile], str | None] = zipfile.ZipFile.testzip) -> None:
    """torch.load would give a legacy pickle a chance and does not name a damaged member.

    Args:
        look: reads the members that matter, and names one that is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = look(archive)
    except zipfile.BadZipFile as error:
        if path.stat().st_size and path.open("rb").read(1) == b"\x80":
            raise UserError(
                f"{path}: refused: a bare pickle, which could run code when loaded; expected a file that torch.save "
                "wrote (a zip archive)"
            ) from error
        raise UnreadableCheckpoint(f"{path}: truncated or damaged ({error})") from error
    except (OSError, EOFError, RuntimeError, ValueError, zlib.error, struct.error) as error:
        raise UnreadableCheckpoint(f"{path}: truncated or damaged ({error})") from error
    if damaged is not None:
        raise UnreadableCheckpoint(f"{path}: damaged at {damaged}")


def _is_full(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in DISK_FULL:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
