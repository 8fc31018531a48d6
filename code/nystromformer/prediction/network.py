"""An encoder with a head, its tokenizer and its device: what a finished run, or an experiment, predicts with.

Shapes: n texts, E the encoder's width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.attention import Attention
from nystromformer.config import ExperimentConfig
from nystromformer.model import ClassificationModel
from nystromformer.model.finetuning import mean_over
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Recipe
from nystromformer.tasks.documents.targets import target_of
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.finetuning.target import vectors_of
from nystromformer.training import Device
from nystromformer.training.checkpoint import load_weights
from nystromformer.training.distributed import take_gpu
from nystromformer.training.prefetch import prefetch_batches

TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
INDEPENDENT_TOKENS_AT_A_TIME = {"cpu": 512, "cuda": 8192}
"""Where batches are filled up: on a CPU few enough that one short text does not take long."""
_LENGTHS_APART = 32
"""So that shapes come again, for a few per cent more tokens."""


@dataclass
class Network:
    """An encoder with a head; its model is built when it is first asked.

    Args:
        name: of the run's task, or of the experiment.
        recipe: what its texts are, and what it learned of them.
        length: tokens that are read of a text.
        pad_to: tokens of every row; None: by its length.
        embeds: whether it gives the vectors that its head gets.
        origin: what decides its scores beside the weights' checksum, its texts and what is here.
        weights: of the whole model, or of its encoder alone, whose names then have no such beginning.
        source: the file that they were read from.
    """

    name: str
    recipe: Recipe
    config: ExperimentConfig
    tokenizer: Tokenizer
    device: Device
    length: int
    pad_to: int | None
    embeds: bool
    origin: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    source: Path

    @property
    def facts(self) -> dict[str, Any]:
        """What decides its scores beside the texts."""
        facts = {"length": self.length, "pad_to": self.pad_to, "cut": str(self.recipe.cut)}
        precision = {"precision": self.device.precision, "device": self.device.device.type}
        return {**self.origin, **facts, **precision, **({"embed": True} if self.embeds else {})}

    @property
    def outputs(self) -> int:
        """Numbers for each text."""
        return self.config.model.transformer_dim if self.embeds else self.recipe.answer.outputs

    @cached_property
    def model(self) -> ClassificationModel:
        """With its weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = target_of(self.recipe.answer).build(self.config.model)
            assert isinstance(model, ClassificationModel)
            is_whole = any(name.startswith("head.") for name in self.weights)
            load_weights(model if is_whole else model.encoder, self.weights, self.source)
            self.weights = {}
            take_gpu(self.device)
            return model.to(self.device.device).eval()

    @cached_property
    def has_rows_apart(self) -> bool:
        """Whether a row's result does not depend on the others of its batch."""
        return all(module.holds.batch for module in self.model.modules() if isinstance(module, Attention))

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> EncodedTexts:
        """Texts as it reads them."""
        types = self.config.model.num_sen_type > 1
        return encode_cut(self.recipe.texts_of(texts, second), self.tokenizer, self.length, types, self.recipe.cut)

    def scores(self, examples: EncodedTexts, independent: bool = False) -> Tensor:
        """In the examples' order, (n, outputs) float32 on the CPU.

        Args:
            independent: compute them so that a text's scores do not depend on the others: every batch has one of a few
                shapes. Few texts take longer then, as batches are filled up.
        """
        total = torch.zeros(len(examples), self.outputs)
        width = self.config.model.transformer_dim
        budget = (INDEPENDENT_TOKENS_AT_A_TIME if independent else TOKENS_AT_A_TIME)[self.device.device.type]
        with torch.inference_mode(), self.device.autocast(), self.device.products(width) as are_fast:
            planned = self._plan(examples, budget, are_fast, independent)
            batches = (examples.batch(np.resize(each.numbers, each.size), each.length) for each in planned)
            for each, batch in zip(planned, prefetch_batches(batches, self.device.device), strict=True):
                vectors = self._vectors(batch, budget)
                found = vectors if self.embeds else self.model.logits(vectors)
                total[torch.from_numpy(each.numbers)] = found[: len(each.numbers)].float().cpu()
        return total

    def _plan(self, examples: EncodedTexts, budget: int, are_fast: bool, independent: bool) -> list[_Batch]:
        """The batches: of as few tokens of padding as possible, of few lengths where that makes products fast; or such
        that the shape in which an example is computed follows from the example alone.

        The last bits of a product of float32 matrices depend on their shapes. An example of several rows is a batch of
        its own then, and so is every example for an attention that mixes the rows of a batch.
        """
        if not independent:
            parts = fit_to_budget(np.arange(len(examples)), examples.lengths, examples.rows, budget, 1, self.pad_to)
            longest = [int(examples.lengths[part].max()) for part in parts]
            lengths = [self._rounded(most) if are_fast else self.pad_to for most in longest]
            return [_Batch(part, length, len(part)) for part, length in zip(parts, lengths, strict=True)]
        of_length: dict[int, list[int]] = defaultdict(list)
        planned: list[_Batch] = []
        for number in np.argsort(examples.lengths, kind="stable").tolist():
            length = self._rounded(int(examples.lengths[number]))
            if self.has_rows_apart and examples.rows[number] == 1:
                of_length[length].append(number)
            else:
                planned.append(_Batch(np.asarray([number]), length, 1))
        for length, numbers in of_length.items():
            size = max(budget // length, 1)
            parts = [np.asarray(numbers[start : start + size]) for start in range(0, len(numbers), size)]
            planned += [_Batch(part, length, size) for part in parts]
        return planned

    def _rounded(self, longest: int) -> int:
        """To how many tokens a row, or a batch whose longest row has so many, is padded."""
        return self.pad_to or min(-(-longest // _LENGTHS_APART) * _LENGTHS_APART, self.config.model.max_seq_len)

    def _vectors(self, batch: Mapping[str, Tensor], budget: int) -> Tensor:
        """What the head gets of a batch's examples; one whose windows are too many at once is computed in pieces."""
        tokens_BN = batch["tokens_BN"]
        rows = max(budget // tokens_BN.shape[1], 1)
        if "rows_I" not in batch or len(batch["rows_I"]) > 1 or len(tokens_BN) <= rows:
            return vectors_of(self.model, batch)
        inputs = [batch[name] for name in ("tokens_BN", "mask_BN", "types_BN") if name in batch]
        pieces = [slice(start, start + rows) for start in range(0, len(tokens_BN), rows)]
        pooled = [self.model.pooled(*(each[piece] for each in inputs)).float() for piece in pieces]
        return mean_over(torch.cat(pooled), batch["rows_I"])


@dataclass(frozen=True)
class _Batch:
    """Some examples that are computed at once: those of `numbers`, repeated up to `size`, in rows of `length` tokens,
    or as long as the longest.
    """

    numbers: Ints
    length: int | None
    size: int
