"""An encoder with a head, its tokenizer and its device: what a finished run and a pretrained experiment predict with.

Shapes: n texts, E the encoder's width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config import ExperimentConfig
from nystromformer.model import ClassificationModel
from nystromformer.model.finetuning import mean_over
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Recipe
from nystromformer.tasks.documents.targets import target_of
from nystromformer.tasks.experiment.run import take_gpu
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.target import vectors_of
from nystromformer.tasks.prediction.batches import Lengths, batches_of_fixed_shapes, batches_of_near_lengths
from nystromformer.training import Device
from nystromformer.training.prefetch import prefetch_batches

TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
INDEPENDENT_TOKENS_AT_A_TIME = {"cpu": 512, "cuda": 8192}
"""Where batches are filled up: on a CPU few enough that one short text does not take long."""


@dataclass(frozen=True)
class Network(ABC):
    """Its weights are read when it is first asked.

    Args:
        recipe: what its texts are.
        weights: the file that they are read from.
        length: tokens that are read of a text.
        pad_to: as of Lengths.
    """

    recipe: Recipe
    config: ExperimentConfig
    tokenizer: Tokenizer
    weights: Path
    device: Device
    length: int
    pad_to: int | None

    @abstractmethod
    def read_weights(self, model: ClassificationModel) -> None:
        """Give a model its weights, on the CPU."""

    @property
    def decisive(self) -> Mapping[str, Any]:
        """What decides the scores beside the weights and the texts."""
        return {
            "length": self.length,
            "pad_to": self.pad_to,
            "cut": str(self.recipe.cut),
            "precision": self.device.precision,
            "device": self.device.device.type,
        }

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Examples:
        """Texts as it reads them."""
        types = self.config.model.num_sen_type > 1
        return encode_cut(self.recipe.texts_of(texts, second), self.tokenizer, self.length, types, self.recipe.cut)

    def rows_at_a_time(self, length: int) -> int:
        """How many rows of so many tokens suit the device."""
        return max(TOKENS_AT_A_TIME[self.device.device.type] // length, 1)

    def computed(
        self, examples: Examples, tokens_at_a_time: int | None, whole: bool, independent: bool = False
    ) -> Tensor:
        """Scores, or the vectors that the head gets, in the examples' order, float32 on the CPU, computed in batches of
        similar length.

        Args:
            whole: by the whole model; else by the encoder.
            tokens_at_a_time, independent: as in `Finished.scores`.
        """
        defaults = INDEPENDENT_TOKENS_AT_A_TIME if independent else TOKENS_AT_A_TIME
        tokens_at_a_time = tokens_at_a_time or defaults[self.device.device.type]
        total: Tensor | None = None
        sizes = self.config.model
        lengths = Lengths(self.pad_to, sizes.max_seq_len)
        with torch.inference_mode(), self.device.autocast(), self.device.products(sizes.transformer_dim) as are_fast:
            if independent:
                planned = batches_of_fixed_shapes(examples, tokens_at_a_time, lengths, self.model)
            else:
                planned = batches_of_near_lengths(examples, tokens_at_a_time, lengths, are_fast)
            batches = (examples.batch(each.filled(), each.length) for each in planned)
            for each, batch in zip(planned, prefetch_batches(batches, self.device.device), strict=True):
                vectors = self._vectors(batch, tokens_at_a_time)
                found = (self.model.logits(vectors) if whole else vectors)[: len(each.numbers)].float().cpu()
                total = found.new_zeros(len(examples), found.shape[1]) if total is None else total
                total[torch.from_numpy(each.numbers)] = found
        assert total is not None, "there are examples"
        return total

    def _vectors(self, batch: Mapping[str, Tensor], tokens_at_a_time: int) -> Tensor:
        """Of a batch's examples; one whose windows are too many to be computed at once is computed in pieces."""
        tokens_BN = batch["tokens_BN"]
        rows = max(tokens_at_a_time // tokens_BN.shape[1], 1)
        if "rows_I" not in batch or len(batch["rows_I"]) > 1 or len(tokens_BN) <= rows:
            return vectors_of(self.model, batch)
        types = batch.get("types_BN")
        pieces = [slice(start, start + rows) for start in range(0, len(tokens_BN), rows)]
        pooled = [
            self.model.pooled(
                tokens_BN[piece], batch["mask_BN"][piece], None if types is None else types[piece]
            ).float()
            for piece in pieces
        ]
        return mean_over(torch.cat(pooled), batch["rows_I"])

    @cached_property
    def model(self) -> ClassificationModel:
        """With its weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = target_of(self.recipe.answer).build(self.config.model)
            assert isinstance(model, ClassificationModel)
            self.read_weights(model)
            take_gpu(self.device)
            return model.to(self.device.device).eval()
