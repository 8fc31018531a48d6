"""A finished fine-tuning run, opened to predict new texts.

Shapes: n texts, C outputs: classes, labels, or one value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.interop.formats.files import check_finite_weights
from nystromformer.model import ClassificationModel
from nystromformer.runs.record import Run, open_run
from nystromformer.runs.settings import Predict
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.documents.targets import names_of, predicted, probabilities, target_of
from nystromformer.tasks.experiment.run import take_gpu
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.training import Device, choose_device
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import epoch_name
from nystromformer.training.fitting import load_weights
from nystromformer.training.prefetch import prefetch_batches

TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
_LENGTHS_APART = 32
"""So that the shapes of fast products come again, for a few per cent more tokens."""


@dataclass(frozen=True)
class Predictions:
    """What was predicted of some texts."""

    labels: list[Any]
    """Of each text: the name of its class, the names of its labels, or its value."""
    names: tuple[str, ...]
    """Of the classes or labels; none of values."""
    probabilities: NDArray[np.float32] | None
    """(n, C), in the order of the names; of several labels at once a row's sum is not 1. None of values."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class LoadedRun:
    """A finished run. Its weights are read when it first predicts."""

    folder: Path
    result: Run
    recipe: Recipe
    """What its texts are, and what it learned of them."""
    config: ExperimentConfig
    tokenizer: Tokenizer
    weights: Path
    device: Device

    def predict(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Predictions:
        """What the run predicts of texts, in their order.

        Args:
            second: the other text of each pair, for a run that learned from pairs.

        Raises:
            UserError: pairs where the run learned from single texts, or the other way round.
            TypeError: one text instead of several, or what is none.
            ValueError: not as many second texts, or one that is empty or has half of a character.
        """
        for given in (texts, second) if second is not None else (texts,):
            _check_texts(given)
        if second is not None and len(second) != len(texts):
            raise ValueError(f"expected as many second texts as first ones, found {len(second)} and {len(texts)}")
        if (second is not None) != self.recipe.is_of_pairs:
            learned, found = ("pairs", "single texts") if self.recipe.is_of_pairs else ("single texts", "pairs")
            raise UserError(f"{self.folder}: expected {learned}, as in the run's training data, found {found}")
        if not len(texts):
            scores = torch.zeros(0, self.recipe.answer.outputs)
        else:
            scores = self.scores(self.encode(texts, second))
        return self.told(scores)

    def told(self, scores: Tensor) -> Predictions:
        """What scores (n, outputs) say."""
        answer = self.recipe.answer
        labels = names_of(answer, predicted(answer, scores))
        if answer.kind == "value":
            return Predictions(labels, (), None)
        return Predictions(labels, answer.names, probabilities(answer, scores).numpy())

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Examples:
        """Texts as the rows that the run learned from."""
        cleaned = [self.recipe.cleaned(text) for text in texts]
        given = Texts("texts", cleaned, None if second is None else [self.recipe.cleaned(text) for text in second])
        types = self.config.model.num_sen_type > 1
        return encode_cut(given, self.tokenizer, self.result.length, types, self.recipe.cut)

    @property
    def tokens_at_a_time(self) -> int:
        """As many as suit the device."""
        return TOKENS_AT_A_TIME[self.device.device.type]

    def rows_at_a_time(self, length: int) -> int:
        """How many rows of so many tokens that is, at least one."""
        return max(self.tokens_at_a_time // length, 1)

    def scores(self, examples: Examples, tokens_at_a_time: int | None = None) -> Tensor:
        """Scores in the examples' order, (n, outputs) float32 on the CPU, computed in batches of similar length.

        Args:
            tokens_at_a_time: of a batch, padding included; None: as many as suit the device.
        """
        tokens_at_a_time = tokens_at_a_time or self.tokens_at_a_time
        pad_to = self.result.settings.pad_to
        everything = np.arange(len(examples))
        parts = fit_to_budget(everything, examples.lengths, examples.rows, tokens_at_a_time, 1, pad_to)
        total: Tensor | None = None
        width = self.config.model.transformer_dim
        with torch.inference_mode(), self.device.autocast(), self.device.products(width) as are_fast:
            lengths = [self._padded_length(int(examples.lengths[part].max()), are_fast) for part in parts]
            batches = (examples.batch(part, length) for part, length in zip(parts, lengths, strict=True))
            for part, batch in zip(parts, prefetch_batches(batches, self.device.device), strict=True):
                scores = self._scores(batch, tokens_at_a_time).float().cpu()
                total = scores.new_zeros(len(examples), scores.shape[1]) if total is None else total
                total[torch.from_numpy(part)] = scores
        assert total is not None, "there are examples"
        return total

    def _scores(self, batch: Mapping[str, Tensor], tokens_at_a_time: int) -> Tensor:
        """Of a batch's examples; one whose windows are too many to be computed at once is computed in pieces."""
        tokens_BN = batch["tokens_BN"]
        rows = max(tokens_at_a_time // tokens_BN.shape[1], 1)
        if "rows_I" not in batch or len(batch["rows_I"]) > 1 or len(tokens_BN) <= rows:
            scores: Tensor = self._target.scores(self.model, batch)
            return scores
        types = batch.get("types_BN")
        pieces = [slice(start, start + rows) for start in range(0, len(tokens_BN), rows)]
        pooled = [
            self.model.pooled(
                tokens_BN[piece], batch["mask_BN"][piece], None if types is None else types[piece]
            ).float()
            for piece in pieces
        ]
        return self.model.logits(torch.cat(pooled), batch["rows_I"])

    def _padded_length(self, longest: int, are_fast: bool) -> int | None:
        """That rows of a batch are padded to; None: as long as the longest."""
        if self.result.settings.pad_to is not None or not are_fast:
            return self.result.settings.pad_to
        return min(-(-longest // _LENGTHS_APART) * _LENGTHS_APART, self.config.model.max_seq_len)

    @property
    def _target(self) -> Any:
        return target_of(self.recipe.answer)

    @cached_property
    def model(self) -> ClassificationModel:
        """With the run's weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = self._target.build(self.config.model)
            assert isinstance(model, ClassificationModel)
            load_weights(model, decided(read_checkpoint(self.weights))["model"], self.weights)
            take_gpu(self.device)
            return model.to(self.device.device).eval()


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str | bytes):
        raise TypeError("expected a sequence of texts, found one text: put it into a list")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{number}]: expected a text, found {text!r:.40}")
        if not text.strip():
            raise ValueError(f"texts[{number}]: expected a text, found an empty one")
        if (half := half_character(text)) is not None:
            raise ValueError(f"texts[{number}]: expected a text, found half of a surrogate pair at {half}")


def load_run(folder: str | Path, device: str = "auto", weights: Predict = "best") -> LoadedRun:
    """A finished run of run_classify.py, run_glue.py or run_imdb.py.

    Args:
        folder: with its result.json.
        device: auto, cpu, cuda or cuda:N.
        weights: of the epoch that was best on the validation data, or of the last one.

    Raises:
        UserError: no finished run there, one of another task, its weights or tokenizer are gone, or weights are NaN or
            infinite.
    """
    folder = Path(folder)
    result = open_run(folder)
    recipe = recipe_in(result.texts, folder)
    path = folder / f"{epoch_name(result.choose(weights).epoch)}.model"
    if not path.exists() and not path.is_symlink():  # what else is there is for the reader of checkpoints to name
        raise UserError(
            f"{path}: no such weights: the run discarded them (--discard_weights) or they were moved. Put them "
            "back, or move the folder away and train the run again without --discard_weights"
        )
    content = read_checkpoint(path, mmap=True)
    check_finite_weights(content["model"], path)
    config = experiment_config(content["config"], str(path))
    return LoadedRun(
        folder,
        result,
        recipe,
        config,
        load_tokenizer(result.tokenizer),
        path,
        choose_device(device, config.model.mixed_precision),
    )
