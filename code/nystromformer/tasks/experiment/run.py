"""What every training task takes from config.json: the precision, the loop's settings, and facts for checkpoints."""

from collections.abc import Mapping
from typing import Any

import nystromformer
from nystromformer.config import ExperimentConfig
from nystromformer.config.network import NO_EFFECT
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.training import Device, Group, TrainingSettings, choose_device

_SETTINGS_WITHOUT_EFFECT = {"batches_per_report", "keep_epochs", "minutes_per_checkpoint"}


def run_device(experiment: Experiment, name: str, group: Group) -> Device:
    """The device that `--device` names, in the precision that config.json asks for."""
    precision, rank = experiment.config.model.mixed_precision, group.local_rank if group.size > 1 else None
    return group.check(lambda: choose_device(name, precision, rank))


def training_settings(config: ExperimentConfig) -> TrainingSettings:
    """Those of a pretraining; a task begins with them and replaces what is its own."""
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
        keep_epochs=setting.keep_epochs,
        optimizer=setting.optimizer,
        schedule=setting.schedule,
        decay_steps=round(setting.decay_share * setting.num_steps),
    )


def checkpoint_facts(config: ExperimentConfig, dataset: str, tokenizer: str) -> dict[str, Any]:
    """What every checkpoint says about where it comes from; of the config what decides the weights, so that equal
    weights are equal files.

    Args:
        dataset: the data's fingerprint.
        tokenizer: the SHA-256 of its file; empty where the data are no text.
    """
    sections = config.model_dump(mode="json", by_alias=True, include={"model", "pretraining_setting", "gpu_setting"})
    without = {"model": NO_EFFECT, "pretraining_setting": _SETTINGS_WITHOUT_EFFECT, "gpu_setting": set()}
    decides: Mapping[str, Any] = {
        section: {key: value for key, value in part.items() if key not in without[section]}
        for section, part in sections.items()
    }
    return {"version": nystromformer.__version__, "config": decides, "dataset": dataset, "tokenizer": tokenizer}
