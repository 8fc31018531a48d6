"""Pretraining: masked language modelling and sentence order.

Shapes: B rows, N tokens, K masked positions, V vocabulary.
"""

import math
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import Dataset
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.tasks.experiment.folder import Experiment, checkpoint_facts
from nystromformer.tasks.experiment.run import (
    check_same_run,
    held_folder,
    is_finished,
    latest_checkpoint,
    placed,
    resume,
    say,
    tidy,
)
from nystromformer.tasks.experiment.start import start_weights
from nystromformer.tasks.experiment.tokenizer import keep_tokenizer
from nystromformer.tasks.pretraining.batches import PretrainingSteps, RowPreparation, ValidationBatches, training_steps
from nystromformer.tasks.pretraining.compiled import compiled_where_it_pays
from nystromformer.training import Device, Group, Step, Trainer, TrainingSettings
from nystromformer.training.prefetch import batches_ahead
from nystromformer.training.trainable import Batch

_SUMS = 6
"""Loss sum, number right and number of the masked tokens; the same of the sentence orders."""
_SOME = 8
"""Steps whose batches show what is common: rows with padding, and a last micro-batch that is smaller."""


class Pretraining:
    """What the loop needs of pretraining.

    Args:
        model: a PretrainingModel on the device, as `distribute` gives it.
        dataset: train and validation rows.
        workers: processes that prepare batches; 0: a thread of this one.
        group: the processes that share the batches.
    """

    def __init__(
        self,
        model: nn.Module,
        config: ExperimentConfig,
        dataset: Dataset,
        device: Device,
        workers: int = 0,
        group: Group = Group(),  # noqa: B008  # immutable
    ) -> None:
        self.model = model
        self.group = group
        self.config = config
        self.dataset = dataset
        self.device = device
        self.workers = workers
        self.preparation = RowPreparation(dataset, config)

    def steps(self, first: int, last: int) -> Iterator[Step]:
        pinned = self.device.device.type == "cuda"
        setting, span = self.config.pretraining_setting, range(first, last)
        return training_steps(self.dataset.train, self.preparation, setting, span, self.group, self.workers, pinned)

    def some_steps(self, first: int) -> Iterator[Step]:
        """A few of the run's steps from `first` on, made when asked for."""
        setting = self.config.pretraining_setting
        steps = PretrainingSteps(self.dataset.train, self.preparation, setting.batch_size, setting.seed, self.group)
        return (steps[number] for number in range(first, first + _SOME))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        sums = self._sums(batch)
        # Each micro-batch adds its part of the mean over the masked tokens (and labelled orders) of the whole batch.
        loss = sums[0] / batch["mlm_count"] + sums[3] / batch["sop_count"]
        return loss, sums.detach()

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return pretraining_metrics(sums)

    def validate(self) -> dict[str, float]:
        setting = self.config.pretraining_setting
        return self.score(setting.validate_batches_per_epoch * setting.batch_size)

    def score(self, num_rows: int | None = None) -> dict[str, float]:
        """Metrics on validation rows, the same rows with the same masks every time.

        Args:
            num_rows: how many rows, drawn once and for all; None for all of them.
        """
        device, group = self.device.device, self.group
        total = torch.zeros(_SUMS, dtype=torch.float64, device=device)
        batches = ValidationBatches(self.dataset.validation, self.preparation, num_rows)
        # A sharded model needs all processes in each call: one that has no batch left scores the last one for show.
        mine = range(group.rank, len(batches) + (-len(batches)) % group.size, group.size)
        prepared = batches_ahead((batches[min(number, len(batches) - 1)] for number in mine), device)
        for number, batch in zip(mine, prepared, strict=True):
            sums = self._sums(batch)
            if number < len(batches):
                total += sums
        return pretraining_metrics(group.sum(total).tolist())

    def _sums(self, batch: Batch) -> Tensor:
        names = ("tokens_BN", "positions_BK", "mask_BN", "types_BN", "labels_BK")
        out = self.model(*(batch.get(name) for name in names))
        if out.order_B2 is None:
            return torch.cat([out.mlm_sums, torch.zeros_like(out.mlm_sums)])
        return torch.cat([out.mlm_sums, _classification_sums(out.order_B2, batch["order_B"])])


def pretraining_metrics(sums: Sequence[float]) -> dict[str, float]:
    """Losses and accuracies; those of the sentence order only where rows had such a label.

    Means over what was seen: the loss that is minimised counts orders by their usual number in a batch instead.
    """
    mlm_loss, mlm_right, mlm_count, sop_loss, sop_right, sop_count = sums
    metrics = {"loss": mlm_loss / mlm_count, "mlm_accuracy": mlm_right / mlm_count}
    if sop_count:
        metrics |= {
            "loss": mlm_loss / mlm_count + sop_loss / sop_count,
            "mlm_loss": mlm_loss / mlm_count,
            "sop_loss": sop_loss / sop_count,
            "sop_accuracy": sop_right / sop_count,
        }
    return metrics


def pretrain(
    experiment: Experiment,
    dataset_folder: Path | None,
    device: Device,
    workers: int = 0,
    verify: bool = False,
    group: Group = Group(),  # noqa: B008  # immutable
) -> signal.Signals | None:
    """Run or resume the pretraining of an experiment folder; returns the signal that stopped it, if one did.

    Args:
        group: the processes that train together; each calls this.

    Raises:
        UserError: anything in the folder, the dataset or the checkpoints that does not fit.
    """
    config, setting = experiment.config, experiment.config.pretraining_setting
    if setting.batch_size % group.size:
        raise UserError(
            f"{group.size} processes cannot share batches of {setting.batch_size} rows equally: start a number of "
            f"processes that divides pretraining_setting.batch_size, such as {math.gcd(group.size, setting.batch_size)}"
        )
    dataset = group.check(lambda: experiment.dataset(dataset_folder, verify and group.local_rank == 0))
    if not len(dataset.train):
        raise UserError(
            f"{dataset.folder}: a dataset for validation only (--validation 1) has no rows to train on: make one with "
            "another --validation, or score checkpoints on this one with code/run_validation.py"
        )
    settings, facts = training_settings(config), checkpoint_facts(config, dataset)
    facts |= {"precision": device.precision, "set_by_flag": dict(experiment.set_by_flag)}
    check_same_run(facts, group)
    with held_folder(experiment.checkpoints, group):
        latest = latest_checkpoint(experiment, facts, group)
        if latest is not None and is_finished(latest, setting.num_steps):
            tidy(latest, settings, group)
            group.on_main(lambda: keep_tokenizer(dataset.tokenizer_folder, experiment.checkpoints))
            passed = ", past the end that it has now" if latest[1]["step"] > setting.num_steps else ""
            say(group, "%s: done: %d of %d steps%s", experiment.folder, latest[1]["step"], setting.num_steps, passed)
            return None
        torch.manual_seed(setting.seed)
        model = PretrainingModel(config.model, setting.objectives)
        facts |= start_weights(model, experiment, dataset, None if latest is None else latest[1], group)
        group.on_main(lambda: keep_tokenizer(dataset.tokenizer_folder, experiment.checkpoints))
        say(group, "%s: %s parameters, %s", experiment.folder, f"{count_parameters(model):,}", device)
        first = 0 if latest is None else latest[1]["step"]
        layers, pretraining = list(model.encoder.layers), Pretraining(model, config, dataset, device, workers, group)
        some = pretraining.some_steps(first)
        stance = compiled_where_it_pays(layers, pretraining, config, device, group, some, setting.num_steps)
        pretraining.model = placed(model, layers, config, device, group)
        trainer = Trainer(pretraining, settings, experiment.checkpoints, device, facts, group)
        if latest is not None:
            resume(trainer, latest)
            latest = None  # a second copy of weights and optimizer, for as long as the run takes
        with torch.compiler.set_stance(stance):
            return trainer.run()


def training_settings(config: ExperimentConfig) -> TrainingSettings:
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


def _classification_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss sum, number right, number, over the labels that count; (3,), differentiable in the first."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    right = (logits.detach().argmax(-1) == labels).sum()
    count = (labels != IGNORED_LABEL).sum()
    return torch.stack([loss.float(), right.float(), count.float()])
