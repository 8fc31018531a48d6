"""Checkpoints: `cp-NNNN.cp` (everything) and `cp-NNNN.model` (weights) of each epoch, and the last few in between."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.training.archive import (
    STATE,
    UnreadableCheckpoint,
    read_checkpoint,
    read_facts,
    write_checkpoint,
)
from nystromformer.training.run_record import RunLock, RunRecord, bears_its_name, read_record

logger = logging.getLogger(__name__)

_NAME = re.compile(r"cp-(\d{4,18})(?:-step-(\d{1,18}))?\.cp")
_WEIGHTS = re.compile(r"cp-(\d{4,18})\.(model|cp)")


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
    # With the content's own keys: a file that is made again from what was read is the same to the byte.
    kept = {key: value for key, value in content.items() if key not in STATE or key == "model"}
    return {key: weights if key == "model" else value for key, value in kept.items()}


def find_checkpoints(folder: Path) -> list[CheckpointFile]:
    """The folder's `.cp` files, oldest first.

    Raises:
        UserError: the folder cannot be read.
    """
    checkpoints = []
    for name in _names(folder):
        match = _NAME.fullmatch(name)
        if match:
            step = float("inf") if match[2] is None else int(match[2])
            checkpoints.append(CheckpointFile(int(match[1]), step, folder / name))
    return sorted(checkpoints)


def find_weights(folder: Path) -> dict[int, Path]:
    """The weights of each epoch, by its number: `cp-NNNN.model` or else `cp-NNNN.cp`.

    Raises:
        UserError: the folder cannot be read.
    """
    weights: dict[int, Path] = {}
    for name in _names(folder):
        match = _WEIGHTS.fullmatch(name)
        if match and (match[2] == "model" or int(match[1]) not in weights):
            weights[int(match[1])] = folder / name
    return dict(sorted(weights.items()))


def _names(folder: Path) -> list[str]:
    """Sorted; none where there is no folder. `Path.glob` would find nothing in one that cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror or error}") from error


def choose_weights(folder: Path, wanted: str, several: bool = False) -> list[Path]:
    """The files of "last", a number or, where several may be asked for, "all". Of "last" and "all", those of other runs
    are passed over.

    Raises:
        UserError: nothing there, or another word; lists the numbers that exist.
    """
    weights = find_weights(folder)
    if not weights:
        raise UserError(f"{folder}: no checkpoint of a finished epoch (cp-NNNN.model) is there; pretrain first")
    if wanted == "last":
        return [_without_others(folder, weights.values(), last=True)[-1]]
    if wanted == "all" and several:
        return _without_others(folder, weights.values())
    if wanted.isdecimal() and len(wanted) < 19 and int(wanted) in weights:
        return [weights[int(wanted)]]
    numbers = ", ".join(map(str, weights))
    words = "last, all" if several else "last"
    raise UserError(f"{folder}: expected --checkpoint {words} or one of {numbers}; found {wanted!r}")


def _without_others(folder: Path, weights: Iterable[Path], last: bool = False) -> list[Path]:
    """Those of the folder's run, oldest first; damaged ones stay, so that what reads them says so.

    Raises:
        UserError: all are of other runs.
    """
    record, own = read_record(folder), []
    for path in reversed(list(weights)):
        if record is None or _may_be_own(path, record) or _has_own_state(path, record):
            own.append(path)
            if last:
                break
        elif os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            logger.warning(
                "%s: belongs to another run than the folder (run.json), or does not match its name: skipped", path
            )
    if not own:
        raise UserError(f"{folder}: all of its checkpoints belong to other runs than the one in run.json. {_OTHER_RUN}")
    return own[::-1]


_OTHER_RUN = "Move them to a folder of their own, or remove run.json where they are this folder's after all."


def _may_be_own(path: Path, record: RunRecord) -> bool:
    try:
        facts = read_facts(path)
    except UserError:
        return True
    if not {"epoch", "step"} <= facts.keys():
        return True  # no run's at all: what reads it says so
    return record.owns(facts) and bears_its_name(path, facts)


def _has_own_state(path: Path, record: RunRecord) -> bool:
    """Whether another file took the place of weights of which the run still has the whole state."""
    return path.suffix == ".model" and record.is_own(path.with_suffix(".cp"))


def mend_weights(path: Path) -> None:
    """Make a `.model` that is damaged, gone, or whose place another file took, again from the `.cp` of its epoch, where
    that is whole and of the folder's run; else nothing is done, and what reads it says why.

    Args:
        path: of the `.model`; of the `.cp` where there is no other file.

    Raises:
        UserError: a run is active in the folder, or it cannot be written.
    """
    whole = path.with_suffix(".cp")
    if whole == path:
        with suppress(UserError):  # where that is damaged or the folder is read alone, it serves as it is
            _write_missing_weights(path)
        return
    if (error := _damage(path)) is None or not whole.is_file():
        return
    try:
        content, record = read_checkpoint(whole), read_record(path.parent)
    except UnreadableCheckpoint:
        return
    if not bears_its_name(whole, content) or not (record is None or record.owns(content)):
        return
    try:
        with RunLock(path.parent):
            if _damage(path) is not None:  # nobody else did it meanwhile
                logger.warning("%s; made again from %s", error, whole.name)
                make_weights_again(path, content)
    except UserError as locked:
        raise UserError(f"{error}; it cannot be made again from {whole.name} now: {locked}") from error


def _write_missing_weights(whole: Path) -> None:
    """What fine-tunings from the weights began with is their file: from the `.cp` they would all begin anew."""
    record, weights = read_record(whole.parent), whole.with_suffix(".model")
    if record is None or not record.is_own(whole):
        return
    with RunLock(whole.parent):
        if not os.path.lexists(weights):
            write_checkpoint(weights_of(read_checkpoint(whole)), weights)
            logger.warning("%s: was missing; made again from %s", weights, whole.name)


def _damage(path: Path) -> UserError | None:
    try:
        facts = read_checkpoint(path, mmap=True)
        record = read_record(path.parent)
    except UnreadableCheckpoint as error:
        return error
    if {"epoch", "step"} <= facts.keys() and not bears_its_name(path, facts):
        return UserError(f"{path}: written at step {facts['step']}, which does not match its name")
    if record is not None and not record.owns(facts):
        return UserError(f"{path}: belongs to another run than the folder (run.json)")
    return None


def make_weights_again(weights: Path, content: Mapping[str, Any]) -> None:
    """Set damaged weights aside and write them from the whole state of their epoch."""
    aside = _free_name(weights, "damaged")
    try:
        os.link(weights, aside, follow_symlinks=False)  # the name is never without a file
    except OSError:
        weights.rename(aside)
    write_checkpoint(weights_of(content), weights)


def newest_facts(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """What the newest checkpoint of a folder's run, `.cp` or `.model`, says beside its tensors, which are not read.

    Returns:
        The file and its plain data; None where there is none, or none that can be read: what reads one says why.

    Raises:
        UserError: the folder or its `run.json` cannot be read.
    """
    record = read_record(folder)
    ends = list(reversed(find_weights(folder).values()))
    for path in [*(checkpoint.path for checkpoint in reversed(find_checkpoints(folder))), *ends]:
        try:
            facts = read_facts(path)
        except UserError:
            continue
        is_named = not {"epoch", "step"} <= facts.keys() or bears_its_name(path, facts)
        if is_named and (record is None or record.owns(facts)):
            return path, facts
    return None


def read_latest(
    folder: Path,
    report: Callable[[str], object],
    check: Callable[[Path, dict[str, Any]], object] = lambda path, content: None,
) -> tuple[Path, dict[str, Any]] | None:
    """The newest readable `.cp` of a folder's run; None where there is none at all. Damaged ones and those of other
    runs get names of their own, once another was read.

    Args:
        report: called with a sentence for each file that is passed over.
        check: refuses the one that was read, by a UserError, before anything is renamed.

    Raises:
        UserError: there are checkpoints and none can be read, or weights alone, which a new run would overwrite; or the
            machine could not read one, which is no reason to take another.
    """
    checkpoints, record = find_checkpoints(folder), read_record(folder)
    if record is None:
        _check_one_run(checkpoints)
    aside: list[tuple[Path, str]] = []
    for candidate in reversed(checkpoints):
        path = candidate.path
        try:
            content = read_checkpoint(path)
        except UnreadableCheckpoint as error:
            report(f"{error}; going back to the checkpoint before it")
            aside.append((path, "damaged"))
            continue
        if record is not None and not record.owns(content):
            report(f"{path}: belongs to another run than the folder (run.json): skipped")
            aside.append((path, "other-run"))
            continue
        if not bears_its_name(path, content):
            report(f"{path}: written at step {content.get('step')}, which does not match its name: skipped")
            aside.append((path, "renamed"))
            continue
        check(path, content)
        # Out of the way, so that they do not count as the newest, but kept.
        for other, reason in aside:
            set_aside(other, reason)
        return path, content
    if checkpoints:
        others = [path for path, reason in aside if reason != "damaged"]
        advice = _OTHER_RUN if others else "Move them away to start from the beginning."
        raise UserError(f"{folder}: none of its {len(checkpoints)} checkpoints can be read. {advice}")
    weights = [name for name in _names(folder) if name.startswith("cp-") and name.endswith(".model")]
    if weights:
        raise UserError(
            f"{folder}: holds weights ({weights[-1]}) but no .cp to resume from; a new run would overwrite them. "
            "Put the .cp back, or start in another folder (with from_cp to begin from these weights)."
        )
    return None


def _check_one_run(checkpoints: Sequence[CheckpointFile]) -> None:
    """Check that the checkpoints of a folder without a record, as far as they can be read, are of one run.

    Raises:
        UserError: lists which is of which.
    """
    runs: dict[str, list[str]] = {}
    for checkpoint in checkpoints:
        try:
            run_id = read_facts(checkpoint.path)["run_id"]
        except UserError:  # if it is to be read, that says why
            continue
        runs.setdefault(run_id, []).append(checkpoint.path.name)
    if len(runs) > 1:
        lines = "".join(f"\n  {run_id[:12]}: {', '.join(names)}" for run_id, names in runs.items())
        folder = checkpoints[0].path.parent
        raise UserError(
            f"{folder}: has checkpoints of {len(runs)} runs and no run.json that says which is its own:{lines}\n"
            "Move those of other runs to folders of their own."
        )


def set_aside(path: Path, reason: str) -> Path:
    """Rename a file, a folder or a link to a name that no run looks at: `cp-0003.cp.damaged`, or with a number."""
    target = _free_name(path, reason)
    path.rename(target)
    return target


def _free_name(path: Path, reason: str) -> Path:
    number, target = 1, path.with_name(f"{path.name}.{reason}")
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.{reason}-{number}")
    return target
