"""The folder of a run: one writer at a time, `cp-NNNN.cp` (everything) and `cp-NNNN.model` (weights) of each epoch, and
the last two checkpoints in between.

A checkpoint's file is what `torch.save` writes, and behind it the SHA-256 of all that, which every load verifies. It is
written under a temporary name, synced and renamed: whatever bears its name was whole once.
"""

import hashlib
import json
import logging
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.errors import UserError, first_line
from nystromformer.files.writing import NewFile, hold
from nystromformer.training.group import Group
from nystromformer.wording import listed

logger = logging.getLogger(__name__)

FORMAT = 4
_STATE = ("sha256", "facts", "asked", "optimizer", "scaler", "progress")
"""What of a `.cp` file's content is not in the `.model` file."""
_TRAILER = re.compile(rb"\nsha256 ([0-9a-f]{64})\n")
_TRAILER_BYTES = 73
_CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"cp-(\d{4,18})(?:-step-(\d{1,18}))?\.cp")
_WEIGHTS = re.compile(r"cp-(\d{4,18})\.(model|cp)")
_BETWEEN = 2
"""Checkpoints within an epoch that stay: if the newest is damaged there is the one before it."""


class UnreadableCheckpoint(UserError):
    """A checkpoint file that is truncated or damaged: an earlier one may serve."""


def write_checkpoint(content: Mapping[str, Any], path: Path) -> None:
    """Write atomically; what stood at `path` before stays whole until the new file is."""
    with NewFile(path) as file:
        try:
            writable: Any = file  # it has what is needed
            torch.save({key: value for key, value in content.items() if key != "sha256"}, writable)
        except RuntimeError as error:
            # torch's own words for an error of the file.
            raise error.__context__ if isinstance(error.__context__, UserError) else error from None
        file.write(f"\nsha256 {file.stamp.sha256}\n".encode())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a `.cp` or `.model` file; only tensors and plain data are ever loaded.

    Returns:
        What was written, and its checksum as "sha256".

    Raises:
        UnreadableCheckpoint: truncated or damaged.
        UserError: missing, not of this project, of another format, or with code in it (refused).
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            left = max(0, os.fstat(file.fileno()).st_size - _TRAILER_BYTES)
            while chunk := file.read(min(_CHUNK_BYTES, left)):
                digest.update(chunk)
                left -= len(chunk)
            found = _TRAILER.fullmatch(file.read())
            if found is None:
                raise UnreadableCheckpoint(
                    f"{path}: truncated or damaged (no checksum at its end), or not a checkpoint of this project"
                )
            if digest.hexdigest() != found[1].decode():
                raise UnreadableCheckpoint(f"{path}: damaged (its content is not what its checksum says)")
            file.seek(0)
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint") from error
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused: the file holds more than tensors and plain data, and loading it could run code. Only "
            f"checkpoints that this project writes are loaded. ({first_line(error)})"
        ) from error
    found_format = content.get("format") if isinstance(content, dict) else None
    if found_format != FORMAT:
        raise UserError(
            f"{path}: expected a checkpoint of format {FORMAT}, found {found_format!r:.40}: made by an earlier "
            "version, or no checkpoint of this project"
        )
    return {**content, "sha256": found[1].decode()}


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same plain data as JSON has it: a pickle tells equal objects from one that comes again, so only thus equal
    facts are equal bytes, of a run that was resumed as of one that was not."""
    data: dict[str, Any] = json.loads(json.dumps(facts))
    return data


def write_weights(content: Mapping[str, Any], path: Path) -> None:
    """Write the `.model` file of a `.cp` file's content: no state, and no variables of an objective, which only
    training has a use for.
    """
    facts = {key: value for key, value in content.items() if key not in (*_STATE, "model")}
    weights = {name: weight for name, weight in content["model"].items() if not name.startswith("objective.")}
    write_checkpoint({**plain(facts), "model": weights}, path)


@contextmanager
def hold_folder(folder: Path, group: Group = Group()) -> Iterator[None]:  # noqa: B008  # immutable
    """Holds a folder for one command; of a group the main process holds it."""
    held = hold(folder / "run.lock", "refuse", f"{folder}: a run is active here already")
    with ExitStack() as stack:
        group.on_main(lambda: stack.enter_context(held))
        yield


@dataclass(frozen=True, order=True)
class CheckpointFile:
    """A `.cp` file of a run, ordered by how far the run had come."""

    epoch: int
    step: float
    """The step of one written between epochs; inf for an epoch's end."""
    path: Path

    @property
    def is_end(self) -> bool:
        """Whether it is an epoch's, after the validation."""
        return self.step == float("inf")


def epoch_name(epoch: int) -> str:
    """`cp-0099` for epoch 99 (epochs count from 0)."""
    return f"cp-{epoch:04d}"


def find_checkpoints(folder: Path) -> list[CheckpointFile]:
    """The folder's `.cp` files, oldest first."""
    matches = [(path, match) for path in folder.glob("cp-*.cp") if (match := _NAME.fullmatch(path.name))]
    return sorted(
        CheckpointFile(int(match[1]), float("inf") if match[2] is None else int(match[2]), path)
        for path, match in matches
    )


def find_weights(folder: Path) -> dict[int, Path]:
    """The weights of each epoch, by its number: `cp-NNNN.model` or else `cp-NNNN.cp`."""
    found = [(int(match[1]), path) for path in folder.glob("cp-*") if (match := _WEIGHTS.fullmatch(path.name))]
    # The .model of an epoch comes after its .cp.
    return dict(sorted(found, key=lambda each: (each[0], each[1].suffix == ".model")))


def choose_weights(folder: Path, wanted: str, several: bool = False) -> list[Path]:
    """The files of "last", a number or, where several may be asked for, "all"."""
    weights = {str(epoch): path for epoch, path in find_weights(folder).items()}
    if not weights:
        raise UserError(f"{folder}: no checkpoint of a finished epoch (cp-NNNN.model) is there; pretrain first")
    if wanted == "all" and several:
        return list(weights.values())
    chosen = weights | {"last": [*weights.values()][-1]}
    if wanted not in chosen:
        words = "last, all" if several else "last"
        raise UserError(f"{folder}: expected --checkpoint {words} or one of {', '.join(weights)}; found {wanted!r:.40}")
    return [chosen[wanted]]


def read_newest(folder: Path) -> tuple[CheckpointFile, dict[str, Any]] | None:
    """The newest whole `.cp` of a folder; says which damaged ones are passed over. None where there is none at all.

    Raises:
        UserError: there are some, and none can be read.
    """
    checkpoints = find_checkpoints(folder)
    for checkpoint in reversed(checkpoints):
        try:
            return checkpoint, read_checkpoint(checkpoint.path)
        except UnreadableCheckpoint as error:
            logger.warning("%s; going back to the checkpoint before it", error)
    if checkpoints:
        raise UserError(
            f"{folder}: none of its {len(checkpoints)} checkpoints can be read. Move them away to start from the "
            "beginning."
        )
    return None


def remove_old(newest: CheckpointFile, keep_epochs: int | None, best: int | None) -> None:
    """Remove the checkpoints that are superfluous once this one is whole, damaged newer ones among them.

    One between epochs stays until the end of its epoch has one, as long as it is among the last two.

    Args:
        keep_epochs: so many of the last epochs stay, `.cp` and `.model`; None: all.
        best: where given, only the weights of this epoch and the last one stay, and the last two `.cp` of either kind.
    """
    folder = newest.path.parent
    found = find_checkpoints(folder)
    upto = [file for file in found if file <= newest]
    last_end = max((file.epoch for file in upto if file.is_end), default=-1)
    oldest = 0 if keep_epochs is None else last_end - keep_epochs + 1
    ends = [file for file in upto if file.is_end and file.epoch >= oldest]
    between = [file for file in upto if not file.is_end and file.epoch > last_end][-_BETWEEN:]
    staying = ends + between if best is None else sorted(ends + between)[-_BETWEEN:]
    for file in found:
        if file not in staying:
            file.path.unlink(missing_ok=True)
    for epoch, path in find_weights(folder).items():
        stays = epoch >= oldest if best is None else epoch in (best, last_end)
        if path.suffix == ".model" and not stays:
            path.unlink(missing_ok=True)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: Path) -> None:
    """Load weights that fit exactly."""
    check_weights(model.state_dict(), weights, source)
    model.load_state_dict(weights)


def check_weights(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    """Check that weights fit a model's exactly; lists every missing, unexpected and differently shaped one."""
    problems = [f"{name}: missing from the checkpoint" for name in expected if name not in weights]
    problems += [f"{name}: not in the model" for name in weights if name not in expected]
    for name, weight in weights.items():
        if name in expected and weight.shape != expected[name].shape:
            wanted, found = tuple(expected[name].shape), tuple(weight.shape)
            problems.append(f"{name}: the model has {wanted}, the checkpoint {found}")
    if problems:
        raise UserError(f"{source}: of another architecture than the model in config.json:{listed(problems)}")
