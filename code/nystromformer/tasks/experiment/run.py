"""What every training task does around the loop: hold the folder, find the checkpoint, place the model."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nystromformer.config import ExperimentConfig
from nystromformer.tasks.experiment.folder import Experiment, check_resumable
from nystromformer.training import Device, Group, Trainer, TrainingSettings
from nystromformer.training.checkpoint import (
    epoch_name,
    read_checkpoint,
    read_latest,
    remove_leftovers,
    remove_old,
    reopen_epoch,
    write_missing_weights,
)
from nystromformer.training.compile import compile_units
from nystromformer.training.distributed import distribute
from nystromformer.training.folder import RunLock

logger = logging.getLogger(__name__)


def check_same_run(facts: Mapping[str, Any], group: Group) -> None:
    """Check that all processes read the same config.json and dataset.

    Raises:
        UserError: names each key that differs.
    """
    sections = {section: part for section, part in facts["config"].items() if isinstance(part, dict)}
    values = {f"{section}.{key}": value for section, part in sections.items() for key, value in part.items()}
    group.same(**values, dataset=facts["dataset"])


@contextmanager
def held_folder(folder: Path, group: Group) -> Iterator[None]:
    """Within the block, no other run writes to the folder; the group's main process holds its lock.

    Raises:
        UserError: another run holds it, or it cannot be written.
    """
    with ExitStack() as stack:

        def hold() -> None:
            stack.enter_context(RunLock(folder))

        group.on_main(hold)
        yield


def newest(
    folder: Path, group: Group, check: Callable[[Path, dict[str, Any]], None] = lambda path, content: None
) -> tuple[Path, dict[str, Any]] | None:
    """The newest readable checkpoint of a folder; the main process chooses it, all read it.

    Args:
        check: refuses one that a run cannot go on from, by a UserError.

    Raises:
        UserError: there are some and none can be read, or the newest is refused.
    """
    latest: tuple[Path, dict[str, Any]] | None = None

    def choose() -> str | None:
        nonlocal latest
        latest = read_latest(folder, logger.warning)
        if latest is None:
            return None
        check(*latest)
        return latest[0].name

    name = group.on_main(choose)
    if name is None:
        return None
    path = folder / name
    return group.check(lambda: latest or (path, read_checkpoint(path)))


def latest_checkpoint(
    experiment: Experiment, facts: Mapping[str, Any], group: Group
) -> tuple[Path, dict[str, Any]] | None:
    """The folder's newest checkpoint, of a pretraining run that can go on.

    Raises:
        UserError: none can be read, or the run cannot go on from it (lists each difference).
    """

    def check(path: Path, content: dict[str, Any]) -> None:
        for difference in check_resumable(content, facts, path):
            logger.info("changed since %s: %s", path.name, difference)

    return newest(experiment.checkpoints, group, check)


def is_finished(latest: tuple[Path, Mapping[str, Any]] | None, num_steps: int) -> bool:
    """Whether a run's newest checkpoint is the one of its last epoch's end."""
    return latest is not None and latest[1]["step"] >= num_steps and latest[0].stem == epoch_name(latest[1]["epoch"])


def resume(trainer: Trainer, latest: tuple[Path, Mapping[str, Any]]) -> None:
    """Go on from a checkpoint.

    Raises:
        UserError: it does not fit the model.
    """
    path, content = latest
    trainer.group.check(lambda: trainer.resume(content, path))
    tidy(latest, trainer.settings, trainer.group)
    say(trainer.group, "going on from %s, step %d of %d", path.name, content["step"], trainer.settings.num_steps)


def tidy(latest: tuple[Path, Mapping[str, Any]], settings: TrainingSettings, group: Group) -> None:
    """Put a run's checkpoints in order: after a kill at an epoch's very end, and for settings that have changed."""
    path, content = latest

    def work() -> None:
        remove_leftovers(path.parent)
        write_missing_weights(content, path)
        if content["step"] < settings.num_steps:
            reopen_epoch(content, path, settings.steps_per_epoch)
        if settings.best_metric is None:  # else the next epoch's end knows which epochs stay
            remove_old(path.parent, settings.keep_checkpoints, keep_epochs=settings.keep_epochs)

    group.on_main(work)


def placed(
    model: nn.Module, layers: Sequence[nn.Module], config: ExperimentConfig, device: Device, group: Group
) -> nn.Module:
    """The module to train: on the device, its layers compiled if config.json says so, distributed as it says."""
    take_gpu(device)
    layout = config.gpu_setting.parallel
    if layout == "ddp" or group.size == 1:
        model.to(device.device)  # shards go there on their own: the whole may be too large
    if config.model.compile is True and (missing := compile_units(layers, device.device)):
        say(group, "model.compile: %s; the layers run uncompiled", missing)
    return distribute(model, layers, layout, group, device)


def take_gpu(device: Device) -> None:
    """Make the run's GPU the process' own: else it also opens the first one, and kernels start there."""
    if device.device.type == "cuda" and device.device.index is not None:
        torch.cuda.set_device(device.device)


def say(group: Group, text: str, *values: object) -> None:
    """A line for people, once, however many processes there are."""
    if group.is_main:
        logger.info(text, *values)
