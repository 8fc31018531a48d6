"""What becomes of a run's older checkpoints, and of what a kill left behind. Only with the folder's lock held."""

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nystromformer.errors import UserError
from nystromformer.files.writing import sync_folder
from nystromformer.training.archive import TEMPORARY, looks_whole, read_checkpoint, write_checkpoint
from nystromformer.training.checkpoint import (
    between_name,
    epoch_name,
    find_checkpoints,
    find_weights,
    make_weights_again,
    set_aside,
    weights_of,
)
from nystromformer.training.run_record import RunRecord

logger = logging.getLogger(__name__)

T = TypeVar("T")


def complete_weights(content: Mapping[str, Any], path: Path, record: RunRecord) -> list[Path]:
    """Write the `.model` files that lack, or were cut short, again from the epochs' `.cp` files.

    Args:
        content: of the newest checkpoint, `path`: a kill may have come between it and its `.model`.
        record: of the run; files of others are left alone.

    Returns:
        Those that were damaged and are whole again.
    """
    if path.stem == epoch_name(content["epoch"]) and not path.with_suffix(".model").exists():
        write_checkpoint(weights_of(content), path.with_suffix(".model"))
    mended = []
    for checkpoint in find_checkpoints(path.parent):
        weights = checkpoint.path.with_suffix(".model")
        if checkpoint.step != float("inf") or not os.path.lexists(weights):
            continue
        try:
            if looks_whole(weights):
                continue
            if checkpoint.path == path:
                whole = content
            elif record.is_own(checkpoint.path):
                whole = read_checkpoint(checkpoint.path)
            else:
                continue
        except UserError as error:
            logger.warning("%s; %s stays as it is", error, weights.name)  # the run does not need them to go on
            continue
        make_weights_again(weights, whole)
        mended.append(weights)
    return mended


def make_place(path: Path, record: RunRecord) -> None:
    """Set aside what bears the name of a checkpoint that is to be written and is none of the run's."""
    if os.path.lexists(path) and not record.is_own(path):
        set_aside(path, "not-of-this-run")


def reopen_epoch(content: Mapping[str, Any], path: Path, steps_per_epoch: int, record: RunRecord) -> None:
    """Make a checkpoint that ended a run in the midst of an epoch one between epochs, for a run that goes on after all:
    those of the rest of the epoch are the newer ones."""
    if path.stem == epoch_name(content["epoch"]) and content["step"] % steps_per_epoch:
        make_place(path.with_suffix(".model"), record)
        path.with_suffix(".model").unlink(missing_ok=True)
        path.replace(path.with_name(f"{between_name(content['epoch'], content['step'])}.cp"))
        sync_folder(path.parent)


def remove_old(
    folder: Path, record: RunRecord, keep: int, epochs: Collection[int] | None = None, keep_epochs: int | None = None
) -> None:
    """Remove the run's own checkpoints that newer ones, which are whole already, make superfluous.

    One between epochs stays until the end of its epoch has one, and as long as it is among the last `keep`.

    Args:
        record: tells the run's own files, the only ones that count and that go.
        epochs: where given, only the weights of these epochs stay, and the last `keep` `.cp` files of either kind.
        keep_epochs: so many of the last epochs stay, `.cp` and `.model`; None: all.
    """
    checkpoints = [other for other in find_checkpoints(folder) if record.is_own(other.path)]
    ends = [other for other in checkpoints if other.step == float("inf")]
    over = ends[-1].epoch if ends else -1
    between = [other for other in checkpoints if other.step != float("inf") and other.epoch > over]
    staying = _last(keep, sorted([*ends, *between])) if epochs is not None else [*ends, *_last(keep, between)]
    weights = _own_weights(folder, record)
    if epochs is not None:
        leaving = weights.keys() - set(epochs)
    else:
        oldest = _oldest_kept({other.epoch for other in ends}, weights.keys(), keep_epochs)
        staying = [other for other in staying if other.epoch >= oldest]
        leaving = {epoch for epoch in weights if epoch < oldest}
    old = [other.path for other in checkpoints if other not in staying]
    for path in old + [weights[epoch] for epoch in sorted(leaving)]:
        path.unlink(missing_ok=True)


def _own_weights(folder: Path, record: RunRecord) -> dict[int, Path]:
    weights = find_weights(folder)
    return {epoch: path for epoch, path in weights.items() if path.suffix == ".model" and record.is_own(path)}


def _oldest_kept(ends: Collection[int], weights: Collection[int], keep: int | None) -> int:
    """The first of the last `keep` epochs; never one after the last whole state, without which no run goes on."""
    if keep is None or not ends:
        return 0
    return min(_last(keep, sorted({*ends, *weights}))[0], max(ends))


def _last(count: int, items: Sequence[T]) -> Sequence[T]:
    """The last `count` items, which may be none."""
    return items[max(0, len(items) - count) :]


def remove_weights(folder: Path, record: RunRecord) -> None:
    """Remove all weights of a finished run."""
    for path in _own_weights(folder, record).values():
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed run left half written. Only with the folder's lock held."""
    for path in folder.glob(f"cp-*{TEMPORARY}"):
        path.unlink(missing_ok=True)
