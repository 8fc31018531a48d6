"""What every training task does around the loop: hold the folder, find the checkpoint, place the model."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nystromformer.config import ExperimentConfig
from nystromformer.training import Device, Group, Trainer, TrainingSettings
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import (
    RunLock,
    complete_weights,
    epoch_name,
    read_latest,
    remove_leftovers,
    remove_old,
    reopen_epoch,
)
from nystromformer.training.compile import compile_units
from nystromformer.training.distributed import distribute

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    path: Path
    content: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.content["step"])

    def ends(self, settings: TrainingSettings) -> bool:
        """Whether it is the one of a run's last epoch's end."""
        return self.step >= settings.num_steps and self.path.stem == epoch_name(self.content["epoch"])


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


def newest(folder: Path, group: Group, check: Callable[[Saved], None] = lambda saved: None) -> Saved | None:
    """The newest readable checkpoint of a folder; the main process chooses it, all read it.

    Args:
        check: refuses one that a run cannot go on from, by a UserError.

    Raises:
        UserError: there are some and none can be read, or the newest is refused.
    """
    mine: Saved | None = None

    def choose() -> str | None:
        nonlocal mine
        latest = read_latest(folder, logger.warning)
        if latest is None:
            return None
        mine = Saved(*latest)
        check(mine)
        return mine.path.name

    name = group.on_main(choose)
    if name is None:
        return None
    path = folder / name
    return group.check(lambda: mine or Saved(path, read_checkpoint(path)))


def resume(trainer: Trainer, saved: Saved) -> None:
    """Go on from a checkpoint.

    Raises:
        UserError: it does not fit the model.
    """
    trainer.group.check(lambda: trainer.resume(saved.content, saved.path))
    tidy(saved, trainer.settings, trainer.group)
    say(trainer.group, "going on from %s, step %d of %d", saved.path.name, saved.step, trainer.settings.num_steps)


def tidy(saved: Saved, settings: TrainingSettings, group: Group) -> None:
    """Put a run's checkpoints in order: after a kill at an epoch's very end, and for settings that have changed."""
    folder = saved.path.parent

    def work() -> None:
        remove_leftovers(folder)
        complete_weights(saved.content, saved.path)
        if saved.step < settings.num_steps:
            reopen_epoch(saved.content, saved.path, settings.steps_per_epoch)
        elif settings.best_metric is None:
            remove_old(folder, settings.keep_checkpoints, None, settings.keep_epochs, newest=saved.path)

    group.on_main(work)


def training_settings(config: ExperimentConfig) -> TrainingSettings:
    """Those of a run by steps, with AdamW; fine-tuning begins with them and replaces what is its own."""
    setting = config.pretraining_setting
    return TrainingSettings(
        num_steps=setting.num_steps,
        steps_per_epoch=setting.batches_per_epoch,
        steps_per_report=setting.batches_per_report,
        learning_rate=setting.learning_rate,
        warmup_steps=setting.warmup_steps,
        weight_decay=setting.weight_decay,
        betas=(setting.adam_beta1, setting.adam_beta2),
        eps=setting.adam_eps,
        max_grad_norm=setting.max_grad_norm,
        seed=setting.seed,
        minutes_per_checkpoint=setting.minutes_per_checkpoint,
        keep_checkpoints=setting.keep_checkpoints,
        keep_epochs=setting.keep_epochs,
    )


def pretraining_settings(config: ExperimentConfig) -> TrainingSettings:
    """Those of a pretraining run."""
    setting = config.pretraining_setting
    return replace(
        training_settings(config),
        optimizer=setting.optimizer,
        schedule=setting.schedule,
        decay_steps=round(setting.decay_share * setting.num_steps),
    )


def placed(
    model: nn.Module, layers: Sequence[nn.Module], config: ExperimentConfig, device: Device, group: Group
) -> nn.Module:
    """The module to train: on the device, its layers compiled if config.json says so, distributed as it says."""
    take_gpu(device)
    layout = config.gpu_setting.parallel
    if layout == "ddp" or group.size == 1:
        model.to(device.device)  # shards go there on their own: the whole may be too large
    if config.model.compile and (missing := compile_units(layers, device.device)):
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
