"""Pretraining: masked language modelling and sentence order.

Shapes: B rows, N tokens, K masked positions, V vocabulary.
"""

import logging
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from nystromformer.config import ExperimentConfig
from nystromformer.data.counter import permute
from nystromformer.data.dataset import Dataset, Rows
from nystromformer.data.masking import IGNORED_LABEL, count_predictions, prepare_rows
from nystromformer.data.sampler import rows_of_step
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel, count_parameters
from nystromformer.tasks.experiment import (
    Experiment,
    check_resumable,
    checkpoint_facts,
)
from nystromformer.tasks.start import start_weights
from nystromformer.training import Device, Step, Trainer, TrainingSettings
from nystromformer.training.checkpoint import (
    read_checkpoint,
    read_latest,
    remove_leftovers,
    write_missing_weights,
)
from nystromformer.training.compile import compile_units
from nystromformer.training.distributed import distribute
from nystromformer.training.folder import RunLock
from nystromformer.training.group import Group
from nystromformer.training.loop import micro_batches, to_device
from nystromformer.training.prefetch import Prefetched
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

    def __call__(
        self,
        rows: Rows,
        numbers: NDArray[np.int64],
        key: tuple[int, ...],
        ids: NDArray[np.int64],
        part: slice = slice(None),
    ) -> Step:
        """The rows of these numbers, swapped and masked as (key, id) says, as one global batch.

        Args:
            part: which of them are prepared here; the others are only counted.
        """
        all_tokens, all_splits = np.asarray(rows.tokens[numbers]), np.asarray(rows.splits[numbers])
        prepared = prepare_rows(
            all_tokens[part],
            all_splits[part],
            self.special,
            self.vocab_size,
            self.mask_prob,
            self.sentence_order,
            key,
            ids[part],
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
        predictions = count_predictions(all_tokens, self.special, self.mask_prob).sum()
        orders = np.count_nonzero(all_splits) if self.sentence_order else 0
        counts = {"mlm_count": torch.tensor(float(predictions)), "sop_count": torch.tensor(float(orders))}
        parts = [
            {name: tensor[rows_of_part] for name, tensor in tensors.items()} | counts
            for rows_of_part in micro_batches(len(prepared.tokens_BN), self.micro_batch)
        ]
        return Step(parts, tokens=int((all_tokens != self.special.pad).sum()))


class PretrainingSteps(TorchDataset[Step]):
    """Item s is a process' part of step s, computed by whichever worker is asked."""

    def __init__(
        self,
        rows: Rows,
        preparation: RowPreparation,
        batch_size: int,
        seed: int,
        group: Group = Group(),  # noqa: B008  # immutable
    ) -> None:
        self.rows = rows
        self.preparation = preparation
        self.batch_size = batch_size
        self.seed = seed
        share = batch_size // group.size
        self.part = slice(group.rank * share, (group.rank + 1) * share)

    def __getitem__(self, step: int) -> Step:
        numbers = rows_of_step(self.seed, step, self.batch_size, len(self.rows))
        ids = np.arange(self.batch_size, dtype=np.int64)
        return self.preparation(self.rows, numbers, (_TRAIN_STREAM, self.seed, step), ids, self.part)


class PretrainingTask:
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
        setting = self.config.pretraining_setting
        steps = PretrainingSteps(self.dataset.train, self.preparation, setting.batch_size, setting.seed, self.group)
        pinned = self.device.device.type == "cuda"
        if not self.workers:
            numbers = range(first, last)
            return iter(Prefetched(steps[number].pin_memory() if pinned else steps[number] for number in numbers))
        loader = DataLoader(
            steps,
            batch_size=None,
            sampler=range(first, last),
            num_workers=self.workers,
            pin_memory=pinned,
            worker_init_fn=_leave_signals_to_the_run,
        )
        return iter(loader)

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
        device, group = self.device.device, self.group
        total = torch.zeros(_SUMS, dtype=torch.float64, device=device)
        batches = ValidationBatches(self.dataset.validation, self.preparation, num_rows)
        # A sharded model needs all processes in each call: one that has no batch left scores the last one for show.
        mine = range(group.rank, len(batches) + (-len(batches)) % group.size, group.size)
        prepared = Prefetched(batches[min(number, len(batches) - 1)] for number in mine)
        for number, batch in zip(mine, prepared, strict=True):
            sums = self._sums(to_device(batch, device))
            if number < len(batches):
                total += sums
        return pretraining_metrics(group.sum(total).tolist())

    def _sums(self, batch: Batch) -> Tensor:
        names = ("tokens_BN", "positions_BK", "mask_BN", "types_BN", "labels_BK")
        out = self.model(*(batch.get(name) for name in names))
        if out.order_B2 is None:
            return torch.cat([out.mlm_sums, torch.zeros_like(out.mlm_sums)])
        return torch.cat([out.mlm_sums, _classification_sums(out.order_B2, batch["order_B"])])


class ValidationBatches(Sequence[Batch]):
    """The validation rows, masked by their number alone: neither seed, nor batch size, nor epoch changes a mask.

    Args:
        num_rows: how many of them, in a random but fixed order, because neighbouring rows come from one document.
    """

    def __init__(self, rows: Rows, preparation: RowPreparation, num_rows: int | None) -> None:
        self.rows = rows
        self.preparation = preparation
        count = len(rows) if num_rows is None else min(num_rows, len(rows))
        numbers = permute(np.arange(count), len(rows), _VALIDATION_STREAM)
        self._parts = [numbers[part] for part in micro_batches(count, preparation.micro_batch)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        numbers = self._parts[index]
        (batch,) = self.preparation(self.rows, numbers, (_VALIDATION_STREAM,), numbers).micro_batches
        return batch


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
    dataset = group.check(lambda: experiment.dataset(dataset_folder, verify))
    facts = checkpoint_facts(config, dataset)
    group.same(config=facts["config"], dataset=facts["dataset"])
    with ExitStack() as stack:
        group.on_main(lambda: _hold(stack, RunLock(experiment.checkpoints)))
        latest = _latest_checkpoint(experiment, facts, group)
        if latest is not None and latest[1]["step"] >= setting.num_steps:
            group.on_main(lambda: _tidy(experiment.checkpoints, *latest))
            say(group, "%s: done: %d of %d steps", experiment.folder, latest[1]["step"], setting.num_steps)
            return None
        torch.manual_seed(setting.seed)
        model = PretrainingModel(config.model, setting.objectives)
        facts |= start_weights(model, experiment, dataset, None if latest is None else latest[1], group)
        say(group, "%s: %s parameters, %s", experiment.folder, f"{count_parameters(model):,}", device)
        trainer = Trainer(
            PretrainingTask(_on_device(model, config, device, group), config, dataset, device, workers, group),
            training_settings(config),
            experiment.checkpoints,
            device,
            facts,
            group,
        )
        if latest is not None:
            path, content = latest
            group.check(lambda: trainer.resume(content, path))
            say(group, "going on from %s, step %d of %d", path.name, content["step"], setting.num_steps)
        return trainer.run()


def _hold(stack: ExitStack, lock: RunLock) -> None:
    stack.enter_context(lock)


def _latest_checkpoint(
    experiment: Experiment, facts: Mapping[str, Any], group: Group
) -> tuple[Path, dict[str, Any]] | None:
    """The folder's newest checkpoint, of a run that can go on; the main process chooses it, all read it."""
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


def _on_device(model: PretrainingModel, config: ExperimentConfig, device: Device, group: Group) -> nn.Module:
    """The module to train: on the device, compiled and distributed as config.json says."""
    if device.device.type == "cuda" and group.size > 1:
        torch.cuda.set_device(device.device)  # else every process also opens the first GPU
    model.to(device.device)
    layers = list(model.encoder.layers)
    if config.model.compile:
        compile_units(layers, device.device)
    return distribute(model, layers, config.gpu_setting.parallel, group, device)


def _tidy(folder: Path, path: Path, content: Mapping[str, Any]) -> None:
    """What a kill at the very end of a run left undone."""
    remove_leftovers(folder)
    write_missing_weights(content, path)


def say(group: Group, text: str, *values: object) -> None:
    """A line for people, once, however many processes there are."""
    if group.is_main:
        logger.info(text, *values)


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
