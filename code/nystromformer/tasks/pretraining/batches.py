"""Batches of pretraining, made from a dataset's rows.

Shapes: B rows, N tokens, K masked positions.
"""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.config import ExperimentConfig
from nystromformer.config.schema import PretrainingConfig
from nystromformer.data.counter import permute
from nystromformer.data.dataset import Dataset, Rows
from nystromformer.data.masking import BERT_REPLACE_PROBS, count_predictions, prepare_rows
from nystromformer.data.sampler import rows_from
from nystromformer.training import Group, Step
from nystromformer.training.trainable import Batch, micro_batch_slices

_TRAIN_STREAM, _VALIDATION_STREAM = 10, 11

Masks = tuple[float, tuple[float, float]]
"""The share of a row's tokens that a model has to guess; of them the shares that [MASK] and random tokens stand for."""


class RowPreparation:
    """From stored rows to micro-batches of tensors; one object serves training and validation."""

    def __init__(self, dataset: Dataset, config: ExperimentConfig) -> None:
        self.vocab_size = dataset.manifest.vocab_size
        self.special = dataset.manifest.special
        setting = config.pretraining_setting
        self.training_masks: Masks = setting.mask_prob, (setting.mask_replace_prob, setting.random_replace_prob)
        self.validation_masks = self.training_masks
        if setting.validation_mask_prob is not None:
            self.validation_masks = setting.validation_mask_prob, BERT_REPLACE_PROBS
        self.sentence_order = "sop" in setting.objectives
        # Rows of one side have no order to learn.
        self.share_with_order = dataset.manifest.sentence_order_share("train")
        self.sentence_types = config.model.num_sen_type > 1
        self.micro_batch = config.gpu_setting.inst_per_gpu

    def __call__(
        self,
        rows: Rows,
        numbers: NDArray[np.int64],
        key: tuple[int, ...],
        ids: NDArray[np.int64],
        masks: Masks,
        part: slice = slice(None),
    ) -> Step:
        """The rows of these numbers, swapped and masked as (key, id) says, as one global batch, of which a part is
        prepared here and the others are only counted.
        """
        mask_prob, replace_probs = masks
        all_tokens, all_splits = np.asarray(rows.tokens[numbers]), np.asarray(rows.splits[numbers])
        prepared = prepare_rows(
            all_tokens[part],
            all_splits[part],
            self.special,
            self.vocab_size,
            mask_prob,
            self.sentence_order,
            key,
            ids[part],
            replace_probs,
        )
        tensors = {
            "tokens_BN": torch.from_numpy(prepared.tokens_BN),
            "positions_BK": torch.from_numpy(prepared.positions_BK),
            "labels_BK": torch.from_numpy(prepared.labels_BK),
        }
        # Counts of the whole batch: micro-batches weigh by their share of them, not by their number.
        counts = {"mlm_count": torch.tensor(float(count_predictions(all_tokens, self.special, mask_prob).sum()))}
        if self.sentence_order:
            tensors["sop_labels"] = torch.from_numpy(prepared.order_B)
            # The number that a batch has on average, so that each labelled row weighs the same in every step.
            counts["sop_count"] = torch.tensor(float(len(all_tokens) * self.share_with_order or 1.0))
        if self.sentence_types:
            tensors["types_BN"] = torch.from_numpy(prepared.types_BN)
        valid_BN = tensors["tokens_BN"] != self.special.pad
        if not valid_BN.all():
            tensors["mask_BN"] = valid_BN
        parts = [
            {name: tensor[rows_of_part] for name, tensor in tensors.items()} | counts
            for rows_of_part in micro_batch_slices(len(prepared.tokens_BN), self.micro_batch)
        ]
        return Step(parts, tokens=int((all_tokens != self.special.pad).sum()))


class BatchSizes:
    """Rows of each step, a pure function of its number: all alike, or growing with the tokens seen.

    Batches grow by as many rows as the first one has; each size is that of as many tokens, up to whole steps.
    """

    def __init__(self, setting: PretrainingConfig, length: int) -> None:
        first = setting.smallest_batch
        self.sizes = list(range(first, setting.batch_size + 1, first))
        growing = self.sizes[:-1]
        rows_of_each = (setting.batch_growth_tokens or 0) / length / max(1, len(growing))
        self.first_steps, self.first_rows = [0], [0]
        for size in growing:
            steps = max(1, round(rows_of_each / size))
            self.first_steps.append(self.first_steps[-1] + steps)
            self.first_rows.append(self.first_rows[-1] + steps * size)

    def of_step(self, step: int) -> tuple[int, int]:
        """The rows that a run has seen before a step, and those of the step."""
        which = bisect_right(self.first_steps, step) - 1
        size = self.sizes[which]
        return self.first_rows[which] + (step - self.first_steps[which]) * size, size


class TrainingSteps:
    """Item s is a process' part of step s."""

    def __init__(
        self,
        dataset: Dataset,
        preparation: RowPreparation,
        setting: PretrainingConfig,
        group: Group = Group(),  # noqa: B008  # immutable
    ) -> None:
        self.rows, self.preparation, self.group = dataset.train, preparation, group
        self.sizes, self.seed = BatchSizes(setting, dataset.manifest.length), setting.seed

    def __getitem__(self, step: int) -> Step:
        first, size = self.sizes.of_step(step)
        numbers = rows_from(self.seed, first, size, len(self.rows))
        share = size // self.group.size
        part = slice(self.group.rank * share, (self.group.rank + 1) * share)
        key = (_TRAIN_STREAM, self.seed, step)
        ids = np.arange(size, dtype=np.int64)
        return self.preparation(self.rows, numbers, key, ids, self.preparation.training_masks, part)


class ValidationBatches(Sequence[Batch]):
    """So many validation rows (None: all), masked by their number alone: neither seed, nor batch size, nor epoch
    changes a mask. Their order is random but fixed, because neighbouring rows come from one document.
    """

    def __init__(self, rows: Rows, preparation: RowPreparation, num_rows: int | None) -> None:
        self.rows = rows
        self.preparation = preparation
        count = len(rows) if num_rows is None else min(num_rows, len(rows))
        numbers = permute(np.arange(count), len(rows), _VALIDATION_STREAM)
        self._parts = [numbers[part] for part in micro_batch_slices(count, preparation.micro_batch)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        numbers = self._parts[index]
        masks = self.preparation.validation_masks
        (batch,) = self.preparation(self.rows, numbers, (_VALIDATION_STREAM,), numbers, masks).micro_batches
        return batch

    def count_predictions(self) -> int:
        """Masked tokens of all batches."""
        special, (mask_prob, _) = self.preparation.special, self.preparation.validation_masks
        counts = (count_predictions(np.asarray(self.rows.tokens[part]), special, mask_prob) for part in self._parts)
        return sum(int(count.sum()) for count in counts)
