"""Pretraining: masked language modelling and sentence order.

Shapes: B rows, N tokens, K masked positions, V vocabulary.
"""

import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from nystromformer.config import ExperimentConfig
from nystromformer.data.counter import permute
from nystromformer.data.dataset import Dataset, Rows
from nystromformer.data.masking import IGNORED_LABEL, prepare_rows
from nystromformer.data.sampler import rows_of_step
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.tasks.experiment import (
    Experiment,
    check_resumable,
    check_same_tokenizer,
    checkpoint_facts,
)
from nystromformer.training import Device, Step, Trainer, TrainingSettings
from nystromformer.training.checkpoint import (
    load_weights,
    read_checkpoint,
    read_latest,
    remove_leftovers,
    write_missing_weights,
)
from nystromformer.training.folder import RunLock
from nystromformer.training.loop import micro_batches, to_device
from nystromformer.training.settings import Batch

logger = logging.getLogger(__name__)

_TRAIN_STREAM, _VALIDATION_STREAM = 10, 11
_SUMS = 6
"""Loss sum, number right and number of the masked tokens; the same of the sentence orders."""


class RowPreparation:
    """From stored rows to micro-batches of tensors; one object serves training and validation."""

    def __init__(self, dataset: Dataset, config: ExperimentConfig) -> None:
        self.vocab_size = dataset.vocab_size
        self.special = dataset.special
        self.mask_prob = config.pretraining_setting.mask_prob
        self.sentence_order = "sop" in config.pretraining_setting.objectives
        self.sentence_types = config.model.num_sen_type > 1
        self.micro_batch = config.gpu_setting.inst_per_gpu

    def __call__(self, rows: Rows, numbers: NDArray[np.int64], key: tuple[int, ...], ids: NDArray[np.int64]) -> Step:
        """The rows of these numbers, swapped and masked as (key, id) says, as one global batch."""
        prepared = prepare_rows(
            np.asarray(rows.tokens[numbers]),
            np.asarray(rows.splits[numbers]),
            self.special,
            self.vocab_size,
            self.mask_prob,
            self.sentence_order,
            key,
            ids,
        )
        tensors = {
            "tokens_BN": torch.from_numpy(prepared.tokens_BN),
            "positions_BK": torch.from_numpy(prepared.positions_BK),
            "labels_BK": torch.from_numpy(prepared.labels_BK),
        }
        if self.sentence_order:
            tensors["order_B"] = torch.from_numpy(prepared.order_B)
        if self.sentence_types:
            tensors["types_BN"] = torch.from_numpy(prepared.types_BN)
        valid_BN = tensors["tokens_BN"] != self.special.pad
        if not valid_BN.all():
            tensors["mask_BN"] = valid_BN
        # Counts of the whole batch: micro-batches weigh by their share of them, not by their number.
        counts = {
            "mlm_count": (tensors["labels_BK"] != IGNORED_LABEL).sum().float(),
            "sop_count": torch.from_numpy(prepared.order_B != IGNORED_LABEL).sum().float(),
        }
        parts = [
            {name: tensor[part] for name, tensor in tensors.items()} | counts
            for part in micro_batches(len(numbers), self.micro_batch)
        ]
        return Step(parts, tokens=int(valid_BN.sum()))


class PretrainingSteps(TorchDataset[Step]):
    """Item s is step s, computed by whichever worker is asked."""

    def __init__(self, rows: Rows, preparation: RowPreparation, batch_size: int, seed: int) -> None:
        self.rows = rows
        self.preparation = preparation
        self.batch_size = batch_size
        self.seed = seed

    def __getitem__(self, step: int) -> Step:
        numbers = rows_of_step(self.seed, step, self.batch_size, len(self.rows))
        return self.preparation(
            self.rows, numbers, (_TRAIN_STREAM, self.seed, step), np.arange(self.batch_size, dtype=np.int64)
        )


class PretrainingTask:
    """What the loop needs of pretraining.

    Args:
        model: on the device.
        dataset: train and validation rows.
        workers: processes that prepare batches; 0 prepares them in this one.
    """

    def __init__(
        self, model: PretrainingModel, config: ExperimentConfig, dataset: Dataset, device: Device, workers: int = 0
    ) -> None:
        self.model = model
        self.config = config
        self.dataset = dataset
        self.device = device
        self.workers = workers
        self.preparation = RowPreparation(dataset, config)

    def steps(self, first: int, last: int) -> Iterator[Step]:
        setting = self.config.pretraining_setting
        steps = PretrainingSteps(self.dataset.train, self.preparation, setting.batch_size, setting.seed)
        loader = DataLoader(
            steps,
            batch_size=None,
            sampler=range(first, last),
            num_workers=self.workers,
            pin_memory=self.device.device.type == "cuda",
            worker_init_fn=_leave_signals_to_the_run,
        )
        yield from loader

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        sums = self._sums(batch)
        # Each micro-batch adds its part of the mean over the masked tokens (and labelled orders) of the whole batch.
        loss = sums[0] / batch["mlm_count"] + sums[3] / batch["sop_count"].clamp(min=1)
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
        total = torch.zeros(_SUMS, dtype=torch.float64)
        for step in validation_steps(self.dataset.validation, self.preparation, num_rows):
            for batch in step.micro_batches:
                total += self._sums(to_device(batch, self.device.device)).cpu()
        return pretraining_metrics(total.tolist())

    def _sums(self, batch: Batch) -> Tensor:
        out = self.model(batch["tokens_BN"], batch["positions_BK"], batch.get("mask_BN"), batch.get("types_BN"))
        sums = _classification_sums(out.mlm_BKV.flatten(0, 1), batch["labels_BK"].flatten())
        if out.order_B2 is None:
            return torch.cat([sums, torch.zeros_like(sums)])
        return torch.cat([sums, _classification_sums(out.order_B2, batch["order_B"])])


def validation_steps(rows: Rows, preparation: RowPreparation, num_rows: int | None) -> Iterator[Step]:
    """The validation rows, masked by their number alone: neither seed, nor batch size, nor epoch changes a mask."""
    count = len(rows) if num_rows is None else min(num_rows, len(rows))
    # In a random but fixed order, because neighbouring rows come from one document.
    numbers = permute(np.arange(count), len(rows), _VALIDATION_STREAM)
    for part in micro_batches(count, preparation.micro_batch):
        yield preparation(rows, numbers[part], (_VALIDATION_STREAM,), numbers[part])


def pretraining_metrics(sums: Sequence[float]) -> dict[str, float]:
    """Losses and accuracies; those of the sentence order only where rows had such a label."""
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
    experiment: Experiment, dataset_folder: Path | None, device: Device, workers: int = 0, verify: bool = False
) -> signal.Signals | None:
    """Run or resume the pretraining of an experiment folder; returns the signal that stopped it, if one did.

    Raises:
        UserError: anything in the folder, the dataset or the checkpoints that does not fit.
    """
    config = experiment.config
    dataset = experiment.dataset(dataset_folder, verify)
    with RunLock(experiment.checkpoints):
        facts = checkpoint_facts(config, dataset)
        latest = read_latest(experiment.checkpoints, logger.warning)
        setting = config.pretraining_setting
        if latest is not None:
            path, content = latest
            for difference in check_resumable(content, facts, path):
                logger.info("changed since %s: %s", path.name, difference)
            if content["step"] >= setting.num_steps:
                remove_leftovers(experiment.checkpoints)
                write_missing_weights(content, path)
                logger.info("%s: done: %d of %d steps", experiment.folder, content["step"], setting.num_steps)
                return None
        torch.manual_seed(setting.seed)
        model = PretrainingModel(config.model, setting.objectives).to(device.device)
        task = PretrainingTask(model, config, dataset, device, workers)
        trainer = Trainer(task, training_settings(config), experiment.checkpoints, device, facts)
        if latest is not None:
            trainer.resume(content, path)
            logger.info("going on from %s, step %d of %d", path.name, content["step"], setting.num_steps)
        elif config.from_cp is not None:
            start_from(model, experiment.path(config.from_cp), dataset)
        logger.info("%s: %s parameters, %s", experiment.folder, f"{count_parameters(model):,}", device)
        return trainer.run()


def start_from(model: PretrainingModel, path: Path, dataset: Dataset) -> None:
    """Take the weights of another run's `.model` or `.cp`.

    Raises:
        UserError: missing, unreadable, of another architecture or with another tokenizer.
    """
    content = read_checkpoint(path)
    check_same_tokenizer(content, dataset, path)
    load_weights(model, content["model"], path)
    logger.info("weights from %s (step %d)", path, content["step"])


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
    )


def _leave_signals_to_the_run(worker: int) -> None:
    """A signal to the whole process group ends the run after its step; until then it needs its workers."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _classification_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss sum, number right, number, over the labels that count; (3,), differentiable in the first."""
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    right = (logits.detach().argmax(-1) == labels).sum()
    count = (labels != IGNORED_LABEL).sum()
    return torch.stack([loss.float(), right.float(), count.float()])
