"""What every training task does around the loop: hold the folder, find the checkpoint, place the model."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nystromformer.config import ExperimentConfig
from nystromformer.tasks.experiment import Experiment, check_resumable
from nystromformer.training import Device, Group
from nystromformer.training.checkpoint import read_checkpoint, read_latest, remove_leftovers, write_missing_weights
from nystromformer.training.compile import compile_units
from nystromformer.training.distributed import distribute
from nystromformer.training.folder import RunLock

logger = logging.getLogger(__name__)


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


def latest_checkpoint(
    experiment: Experiment, facts: Mapping[str, Any], group: Group
) -> tuple[Path, dict[str, Any]] | None:
    """The folder's newest checkpoint, of a run that can go on; the main process chooses it, all read it.

    Raises:
        UserError: none can be read, or the run cannot go on from it (lists each difference).
    """
    latest: tuple[Path, dict[str, Any]] | None = None

    def choose() -> str | None:
        nonlocal latest
        latest = read_latest(experiment.checkpoints, logger.warning)
        if latest is None:
            return None
        path, content = latest
        for difference in check_resumable(content, facts, path):
            logger.info("changed since %s: %s", path.name, difference)
        return path.name

    name = group.on_main(choose)
    if name is None:
        return None
    path = experiment.checkpoints / name
    return group.check(lambda: latest or (path, read_checkpoint(path)))


def finish(latest: tuple[Path, Mapping[str, Any]], group: Group) -> None:
    """Do what a kill at the very end of a run left undone."""
    path, content = latest

    def work() -> None:
        remove_leftovers(path.parent)
        write_missing_weights(content, path)

    group.on_main(work)


def placed(
    model: nn.Module, layers: Sequence[nn.Module], config: ExperimentConfig, device: Device, group: Group
) -> nn.Module:
    """The module to train: on the device, its layers compiled, distributed as config.json says."""
    if device.device.type == "cuda" and group.size > 1:
        torch.cuda.set_device(device.device)  # else every process also opens the first GPU
    model.to(device.device)
    if config.model.compile:
        compile_units(layers, device.device)
    return distribute(model, layers, config.gpu_setting.parallel, group, device)


def say(group: Group, text: str, *values: object) -> None:
    """A line for people, once, however many processes there are."""
    if group.is_main:
        logger.info(text, *values)
