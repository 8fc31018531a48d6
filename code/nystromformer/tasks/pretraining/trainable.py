"""What the loop trains: masked language modelling and sentence order.

Shapes: B rows, N tokens, K masked positions, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.config import ExperimentConfig
from nystromformer.data.dataset import Dataset
from nystromformer.data.masking import IGNORED_LABEL
from nystromformer.tasks.pretraining.batches import RowPreparation, TrainingSteps, ValidationBatches
from nystromformer.training import Device, Group, Step
from nystromformer.training.trainable import Batch, prefetch_batches, prefetched


class Pretraining:
    """What the loop needs of pretraining, of a PretrainingModel as `place` gives it."""

    def __init__(
        self,
        model: nn.Module,
        config: ExperimentConfig,
        dataset: Dataset,
        device: Device,
        group: Group = Group(),  # noqa: B008  # immutable
    ) -> None:
        self.model, self.config, self.dataset, self.device, self.group = model, config, dataset, device, group
        self.preparation = RowPreparation(dataset, config)

    def steps(self, first: int, last: int) -> Iterator[Step]:
        steps = TrainingSteps(self.dataset, self.preparation, self.config.pretraining_setting, self.group)
        pinned = self.device.device.type == "cuda"
        return prefetched(steps[number].pin_memory() if pinned else steps[number] for number in range(first, last))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        sums = self._sums(batch)
        # Each micro-batch adds its part of the mean over the masked tokens, and rows with an order, of the whole batch.
        loss = sums[0] / batch["mlm_count"]
        if "sop_count" in batch:
            loss = loss + sums[3] / batch["sop_count"]
        return loss, sums.detach()

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Losses and accuracies; of the sentence order only where something had a label.

        Means over what was seen: the loss that is minimised counts orders by their usual number in a batch instead.

        Args:
            sums: loss sum, number right and number, of the masked tokens and of the sentence order.
        """
        loss, right, count, order_loss, order_right, order_count = sums
        metrics = {"loss": loss / count, "mlm_accuracy": right / count}
        if order_count:
            metrics["mlm_loss"] = metrics["loss"]
            metrics["loss"] += order_loss / order_count
            metrics |= {"sop_loss": order_loss / order_count, "sop_accuracy": order_right / order_count}
        return metrics

    def validate(self) -> dict[str, float]:
        setting = self.config.pretraining_setting
        return self.score(setting.validate_batches_per_epoch * setting.batch_size)

    def score(self, num_rows: int | None = None) -> dict[str, float]:
        """Metrics on so many validation rows (None: all), the same rows with the same masks every time."""
        device, group = self.device.device, self.group
        total = torch.zeros(6, dtype=torch.float64, device=device)
        batches = ValidationBatches(self.dataset.validation, self.preparation, num_rows)
        # DDP sends buffers around in each call: a process that has no batch left scores the last one for show.
        mine = range(group.rank, len(batches) + (-len(batches)) % group.size, group.size)
        prepared = prefetch_batches((batches[min(number, len(batches) - 1)] for number in mine), device)
        for number, batch in zip(mine, prepared, strict=True):
            sums = self._sums(batch)
            if number < len(batches):
                total += sums
        return self.metrics(group.sum(total).tolist())

    def _sums(self, batch: Batch) -> Tensor:
        inputs = ("tokens_BN", "positions_BK", "mask_BN", "types_BN", "labels_BK")
        out = self.model(*(batch.get(name) for name in inputs))
        # In every checkpoint the sentence order's sums have their place after those of the masked tokens.
        if out.order_B2 is None:
            return torch.cat([out.mlm_sums, torch.zeros_like(out.mlm_sums)])
        labels_B = batch["sop_labels"]
        loss = F.cross_entropy(out.order_B2, labels_B, ignore_index=IGNORED_LABEL, reduction="sum")
        right = (out.order_B2.detach().argmax(-1) == labels_B).sum()
        count = (labels_B != IGNORED_LABEL).sum()
        return torch.cat([out.mlm_sums, torch.stack([loss.float(), right.float(), count.float()])])
