"""What conversion trains: each attention towards the source's, then the whole model.

Shapes: B rows, N tokens, E width, K masked positions.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.data.masking import prepare_rows
from nystromformer.data.sampler import rows_of_step
from nystromformer.exchange.convert.comparison import compare
from nystromformer.exchange.convert.recording import recording
from nystromformer.exchange.convert.rows import TextRows, pad_rows
from nystromformer.interop.distance import relative_square
from nystromformer.model import PretrainingModel
from nystromformer.training import Device, Step
from nystromformer.training.trainable import Batch, to_device

Goal = Literal["layers", "hidden", "loss"]
"""What a stage trains towards: the outputs of the source's attentions, given their inputs (LoLCATs, arXiv 2410.10254);
the source's hidden vectors; the model's own loss."""
MASKED = 0.15
"""The share of the tokens that `loss` masks."""
_HELD_OUT = 10**9
"""In the place of a step's number, of rows that no step has."""


class Stage:
    """One stage, as the training loop wants it.

    Args:
        student: what is trained.
        source: the model that it shall be like, in evaluation.
        goal: what is trained towards; weights that have no part in it stay as they are.
        rows: what it is trained on.
        batch: rows of a step.
        seed: of their order and, for `loss`, of what is masked.
    """

    def __init__(
        self,
        student: PretrainingModel,
        source: PretrainingModel,
        goal: Goal,
        rows: TextRows,
        batch: int,
        seed: int,
        device: Device,
    ) -> None:
        self.model: nn.Module = student
        self._student, self._source = student, source
        self.goal = goal
        self.rows = rows
        self._batch, self._seed = batch, seed
        self._device = device
        for name, parameter in student.named_parameters():
            parameter.requires_grad_(_is_trained(name, goal))

    def steps(self, first: int, last: int) -> Iterator[Step]:
        for step in range(first, last):
            numbers = rows_of_step(self._seed, step, self._batch, len(self.rows.train))
            chosen = [self.rows.train[number] for number in numbers]
            batch = pad_rows(chosen, self.rows.special.pad)
            if self.goal == "loss":
                batch |= self._masked(batch["tokens_BN"], step, numbers)
            yield Step([batch], sum(map(len, chosen)))

    def _masked(self, tokens_BN: Tensor, step: int, numbers: Any) -> dict[str, Tensor]:
        tokens = tokens_BN.numpy()
        whole = np.zeros(len(tokens), dtype=np.int64)
        key = (self._seed, step)
        rows = prepare_rows(tokens, whole, self.rows.special, self.rows.vocab_size, MASKED, False, key, numbers)
        return {
            "tokens_BN": torch.from_numpy(rows.tokens_BN),
            "positions_BK": torch.from_numpy(rows.positions_BK),
            "labels_BK": torch.from_numpy(rows.labels_BK),
        }

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        # Dropout would be noise in what is to be reproduced, and the model has learned with it already.
        self._student.eval()
        if self.goal == "loss":
            sums = self._masked_sums(batch)
            mean = sums[0] / sums[2]
            return mean, torch.stack([mean.detach(), torch.ones_like(mean)])
        mask = AttentionMask(batch["mask_BN"]) if "mask_BN" in batch else None
        with torch.no_grad(), recording(self._source) as wanted:
            wanted_BNE = self._source.encoder(batch["tokens_BN"], mask)
        if self.goal == "layers":
            layers = zip(self._student.encoder.layers, wanted.attended, strict=True)
            pairs = [
                (layer.get_submodule("attention")(*arguments), output_BNE) for layer, (arguments, output_BNE) in layers
            ]
        else:
            with recording(self._student) as found:
                found_BNE = self._student.encoder(batch["tokens_BN"], mask)
            # What follows the last layer, a norm or nothing, belongs to it.
            outputs = [*found.hidden[:-1], found_BNE], [*wanted.hidden[:-1], wanted_BNE]
            pairs = list(zip(*outputs, strict=True))
        # Of each layer relative to its own size: else the layers with large outputs would decide.
        losses = torch.stack([relative_square(one, other, batch.get("mask_BN")) for one, other in pairs])
        mean = losses.mean()
        return mean, torch.stack([mean.detach(), torch.ones_like(mean)])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": sums[0] / sums[1]}

    def validate(self) -> dict[str, float]:
        compared = compare(self._student, self._source, self.rows, self._batch, self._device)
        return compared.metrics() | ({"own_loss": self._own_loss()} if self.goal == "loss" else {})

    @torch.no_grad()
    def _own_loss(self) -> float:
        """On the rows that are held out, masked alike every time."""
        total = torch.zeros(3, dtype=torch.float64)
        for start in range(0, len(self.rows.held_out), self._batch):
            batch = pad_rows(self.rows.held_out[start : start + self._batch], self.rows.special.pad)
            numbers = np.arange(start, start + len(batch["tokens_BN"]))
            batch |= self._masked(batch["tokens_BN"], _HELD_OUT, numbers)
            total += self._masked_sums(to_device(batch, self._device.device)).double().cpu()
        return float(total[0] / total[2])

    def _masked_sums(self, batch: Batch) -> Tensor:
        """The sum of the losses at masked positions, how many were guessed, and how many there are."""
        mask = AttentionMask(batch["mask_BN"]) if "mask_BN" in batch else None
        sums = self._student(batch["tokens_BN"], batch["positions_BK"], mask, None, batch["labels_BK"]).mlm_sums
        assert isinstance(sums, Tensor)
        return sums


def _is_trained(name: str, goal: Goal) -> bool:
    """Embeddings stay as they are where the source's hidden vectors are the goal: they are the source's."""
    if goal == "layers":
        return name.startswith("encoder.layers.") and ".attention." in name
    if goal == "hidden":
        return name.startswith(("encoder.layers.", "encoder.final_norm."))
    return name.startswith(("encoder.", "mlm."))
