"""A finished fine-tuning run, opened to predict new texts.

Shapes: n texts, C outputs: classes, labels, or one value.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

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
from nystromformer.model.finetuning import mean_over
from nystromformer.runs.record import Run, open_run
from nystromformer.runs.settings import Predict
from nystromformer.tasks.documents.cut import encode_cut
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.documents.targets import names_of, predicted, probabilities, target_of
from nystromformer.tasks.experiment.run import take_gpu
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.frozen import vectors_of
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.prediction.batches import Lengths, batches_of_fixed_shapes, batches_of_near_lengths
from nystromformer.training import Device, choose_device
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import epoch_name
from nystromformer.training.fitting import load_weights
from nystromformer.training.prefetch import prefetch_batches

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.words import Words

TOKENS_AT_A_TIME = {"cpu": 2048, "cuda": 8192}
"""On each kind of device, padding included; an example of more is computed alone. On a CPU the tensors of more are so
large that each is fetched from the system anew: rows of 512 at BERT-small's size take a fifth to two fifths longer."""
INDEPENDENT_TOKENS_AT_A_TIME = {"cpu": 512, "cuda": 8192}
"""Where batches are filled up: on a CPU few enough that one short text does not take long."""


@dataclass(frozen=True)
class Predictions:
    """What was predicted of some texts."""

    labels: list[Any]
    """Of each text: the name of its class, the names of its labels, or its value."""
    names: tuple[str, ...]
    """Of the classes or labels; none of values."""
    probabilities: NDArray[np.float32] | None
    """(n, C), in the order of the names; of several labels at once a row's sum is not 1. None of values."""
    has_lists: bool = False
    """Whether each text's label is a list of names."""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Vectors:
    """What an encoder gives the head of some texts."""

    vectors: NDArray[np.float32]
    """(n, E)."""

    def __len__(self) -> int:
        return len(self.vectors)


class Encoded(Protocol):
    """Texts as a model reads them."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """That are read of each text."""

    def __len__(self) -> int: ...


EncodedT = TypeVar("EncodedT", bound=Encoded)
Told = TypeVar("Told", Predictions, Vectors)


class Finished(ABC, Generic[EncodedT, Told]):
    """A finished run, or what was kept with it, opened to be asked about texts."""

    folder: Path
    result: Run
    recipe: Recipe
    """What its texts are, and what it learned of them."""
    weights: Path
    """The file that they are read from."""
    tokens_at_a_time: int
    """As many as suit the device, padding included."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Numbers for each text."""

    @property
    @abstractmethod
    def header(self) -> tuple[str, ...]:
        """Columns of a file with what is told, after the one that names rows."""

    @property
    @abstractmethod
    def decisive(self) -> Mapping[str, Any]:
        """What decides the scores beside the weights and the texts."""

    @abstractmethod
    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> EncodedT:
        """Texts as the run learned from them."""

    @abstractmethod
    def scores(self, examples: EncodedT, tokens_at_a_time: int | None = None) -> Tensor:
        """In the texts' order, (n, outputs) float32 on the CPU."""

    @abstractmethod
    def independent_scores(self, examples: EncodedT, tokens_at_a_time: int | None = None) -> Tensor:
        """The same, computed so that a text's scores do not depend on the others: every batch has one of a few shapes.

        Few texts take longer than with `scores`, as batches are filled up.
        """

    @abstractmethod
    def told(self, scores: Tensor, *, independent: bool = False) -> Told:
        """What scores (n, outputs) say.

        Args:
            independent: compute what is told of each row so that it does not depend on the others.
        """

    def predict(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Told:
        """What is told of texts, in their order.

        Args:
            second: the other text of each pair, for a run that learned from pairs.

        Raises:
            UserError: pairs where the run learned from single texts, or the other way round.
            TypeError: one text instead of several, or what is none.
            ValueError: not as many second texts, or one that is empty or has half of a character.
        """
        return self.told(self.checked_scores(texts, second))

    def checked_scores(
        self, texts: Sequence[str], second: Sequence[str] | None = None, *, independent: bool = False
    ) -> Tensor:
        """The scores (n, outputs) of texts that were checked; as `predict`.

        Args:
            independent: as `independent_scores`.
        """
        for given in (texts, second) if second is not None else (texts,):
            check_texts(given)
        if second is not None and len(second) != len(texts):
            raise ValueError(f"expected as many second texts as first ones, found {len(second)} and {len(texts)}")
        if (second is not None) != self.recipe.is_of_pairs:
            learned, found = ("pairs", "single texts") if self.recipe.is_of_pairs else ("single texts", "pairs")
            raise UserError(f"{self.folder}: expected {learned}, as in the run's training data, found {found}")
        if not len(texts):
            return torch.zeros(0, self.outputs)
        examples = self.encode(texts, second)
        return self.independent_scores(examples) if independent else self.scores(examples)


class Predicting(Finished[EncodedT, Predictions]):
    """What has scores of classes, of labels, or a value."""

    @property
    def outputs(self) -> int:
        return self.recipe.answer.outputs

    @property
    def header(self) -> tuple[str, ...]:
        return ("prediction", *(f"p_{name}" for name in self.recipe.answer.names))

    def told(self, scores: Tensor, *, independent: bool = False) -> Predictions:
        answer = self.recipe.answer
        labels = names_of(answer, predicted(answer, scores))
        if answer.kind == "value":
            return Predictions(labels, (), None)
        # The last bit of an exponential depends on where it stands in a tensor: the processor computes several at once.
        parts = torch.split(scores, 1) if independent else (scores,)
        chances = torch.cat([probabilities(answer, part) for part in parts]).numpy()
        return Predictions(labels, answer.names, chances, has_lists=answer.kind == "several")

    def cleaned(self, texts: Sequence[str], second: Sequence[str] | None) -> Texts:
        """As the run's data were."""
        others = None if second is None else [self.recipe.cleaned(text) for text in second]
        return Texts("texts", [self.recipe.cleaned(text) for text in texts], others)


@dataclass(frozen=True)
class LoadedRun(Predicting[Examples]):
    """A finished fine-tuning run. Its weights are read when it first predicts."""

    folder: Path
    result: Run
    recipe: Recipe
    config: ExperimentConfig
    tokenizer: Tokenizer
    weights: Path
    device: Device

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {
            "length": self.result.length,
            "pad_to": self.result.settings.pad_to,
            "cut": str(self.recipe.cut),
            "precision": self.device.precision,
            "device": self.device.device.type,
        }

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Examples:
        types = self.config.model.num_sen_type > 1
        return encode_cut(self.cleaned(texts, second), self.tokenizer, self.result.length, types, self.recipe.cut)

    @property
    def tokens_at_a_time(self) -> int:  # type: ignore[override]
        return TOKENS_AT_A_TIME[self.device.device.type]

    def rows_at_a_time(self, length: int) -> int:
        """How many rows of so many tokens that is, at least one."""
        return max(self.tokens_at_a_time // length, 1)

    def scores(self, examples: Examples, tokens_at_a_time: int | None = None) -> Tensor:
        return self.computed(examples, tokens_at_a_time, whole=True)

    def independent_scores(self, examples: Examples, tokens_at_a_time: int | None = None) -> Tensor:
        return self.computed(examples, tokens_at_a_time, whole=True, independent=True)

    def computed(
        self, examples: Examples, tokens_at_a_time: int | None, whole: bool, independent: bool = False
    ) -> Tensor:
        """Scores, or the vectors that the head gets, in the examples' order, float32 on the CPU, computed in batches of
        similar length.

        Args:
            tokens_at_a_time: of a batch, padding included; None: as many as suit the device.
            whole: by the whole model; else by the encoder.
            independent: as `independent_scores`.
        """
        defaults = INDEPENDENT_TOKENS_AT_A_TIME if independent else TOKENS_AT_A_TIME
        tokens_at_a_time = tokens_at_a_time or defaults[self.device.device.type]
        total: Tensor | None = None
        sizes = self.config.model
        lengths = Lengths(self.result.settings.pad_to, sizes.max_seq_len)
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
        """With the run's weights, on the device."""
        # Whoever asks first may do so under inference_mode, in which weights would be of no use to a gradient later.
        with torch.inference_mode(False):
            model = target_of(self.recipe.answer).build(self.config.model)
            assert isinstance(model, ClassificationModel)
            load_weights(model, decided(read_checkpoint(self.weights))["model"], self.weights)
            take_gpu(self.device)
            return model.to(self.device.device).eval()


@dataclass(frozen=True)
class Embedding(Finished[Examples, Vectors]):
    """The encoder of a finished run: the pooled vectors that its head gets."""

    run: LoadedRun

    def __post_init__(self) -> None:
        for name in ("folder", "result", "recipe", "weights", "tokens_at_a_time"):
            object.__setattr__(self, name, getattr(self.run, name))

    @property
    def outputs(self) -> int:
        return self.run.config.model.transformer_dim

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(f"v_{number}" for number in range(self.outputs))

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {**self.run.decisive, "embed": True}

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Examples:
        return self.run.encode(texts, second)

    def scores(self, examples: Examples, tokens_at_a_time: int | None = None) -> Tensor:
        return self.run.computed(examples, tokens_at_a_time, whole=False)

    def independent_scores(self, examples: Examples, tokens_at_a_time: int | None = None) -> Tensor:
        return self.run.computed(examples, tokens_at_a_time, whole=False, independent=True)

    def told(self, scores: Tensor, *, independent: bool = False) -> Vectors:
        return Vectors(scores.numpy())


@dataclass(frozen=True)
class WordTexts:
    """Texts of which words are read."""

    texts: Texts

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def tokens(self) -> NDArray[np.int64]:
        """Words."""
        columns = (self.texts.first, *([] if self.texts.second is None else [self.texts.second]))
        counts = [[len(re.findall(r"\w+", text)) for text in column] for column in columns]
        return np.asarray([sum(each) for each in zip(*counts, strict=True)], dtype=np.int64)


@dataclass(frozen=True)
class LoadedWords(Predicting[WordTexts]):
    """The regression on words that is kept beside a run."""

    folder: Path
    result: Run
    recipe: Recipe
    weights: Path
    words: Words
    tokens_at_a_time: int = 1
    """It has no batches."""

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {"baseline": True}

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> WordTexts:
        return WordTexts(self.cleaned(texts, second))

    def scores(self, examples: WordTexts, tokens_at_a_time: int | None = None) -> Tensor:
        return torch.from_numpy(self.words.scores(examples.texts))

    def independent_scores(self, examples: WordTexts, tokens_at_a_time: int | None = None) -> Tensor:
        return self.scores(examples)


def check_texts(texts: Sequence[Any], skipped: Sequence[bool] | NDArray[np.bool_] = ()) -> None:
    """Check that these are texts with something in them.

    Args:
        skipped: for each text whether it may be anything; empty: none may.

    Raises:
        TypeError, ValueError: one is none; names it by its number, from 0.
    """
    if isinstance(texts, str | bytes):
        raise TypeError("expected a sequence of texts, found one text: put it into a list")
    for number, text in enumerate(texts):
        if len(skipped) and skipped[number]:
            continue
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
    result, recipe = _opened(folder)
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


def load_finished(
    folder: str | Path, device: str = "auto", weights: Predict = "best", embed: bool = False, baseline: bool = False
) -> Finished[Any, Any]:
    """A finished run, its encoder (`embed`), or the regression on words that is kept beside it (`baseline`).

    Raises:
        UserError: as `load_run`, or as `load_words`.
    """
    if baseline:
        return load_words(folder)
    run = load_run(folder, device, weights)
    return Embedding(run) if embed else run


def load_words(folder: str | Path) -> LoadedWords:
    """The regression on words that is kept beside a finished run of run_classify.py.

    Raises:
        UserError: no finished run there, or none with such a regression.
    """
    folder = Path(folder)
    result, recipe = _opened(folder)
    if not result.words:
        raise UserError(
            f"{folder}: expected a run of run_classify.py, which keeps a baseline; found one of {result.kind}"
        )
    # Imported here: scikit-learn takes seconds.
    from nystromformer.tasks.finetuning.words import FACTS, Words

    kept = folder.parent / result.words
    words = Words.read(kept)
    if words is None:
        raise UserError(f"{kept}: no such baseline: start the run's command again, which makes it")
    return LoadedWords(folder, result, recipe, kept / FACTS, words)


def _opened(folder: Path) -> tuple[Run, Recipe]:
    result = open_run(folder)
    return result, recipe_in(result.texts, folder)
