"""A finished fine-tuning run, opened to predict new texts.

Shapes: n texts, C outputs: classes, labels, or one value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.config import experiment_config
from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.reading import half_character
from nystromformer.model import ClassificationModel
from nystromformer.runs.record import Run, open_run
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.recipe import Recipe, recipe_in
from nystromformer.tasks.documents.targets import names_of, predicted, probabilities
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.experiment.start import ENCODER, open_pretrained, pretrained_in
from nystromformer.tasks.experiment.tokenizer import find_tokenizer
from nystromformer.tasks.finetuning.examples import Examples, Texts
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.prediction.network import Network
from nystromformer.training import choose_device
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import epoch_name
from nystromformer.training.fitting import load_weights

if TYPE_CHECKING:
    from nystromformer.tasks.finetuning.linear import Words


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


Told = TypeVar("Told", Predictions, Vectors)


class Finished(ABC, Generic[Told]):
    """A finished run, or what was kept with it, opened to be asked about texts."""

    folder: Path
    recipe: Recipe
    """What its texts are, and what it learned of them."""
    weights: Path
    """The file that they are read from."""

    @property
    @abstractmethod
    def task(self) -> str:
        """What users call it."""

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
    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Any:
        """Texts as the run learned from them."""

    @abstractmethod
    def scores(self, examples: Any, tokens_at_a_time: int | None = None, *, independent: bool = False) -> Tensor:
        """In the texts' order, (n, outputs) float32 on the CPU.

        Args:
            tokens_at_a_time: of a batch, padding included; None: as many as suit the device.
            independent: compute them so that a text's scores do not depend on the others: every batch has one of a few
                shapes. Few texts take longer then, as batches are filled up.
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
            ValueError: a text that is empty or has half of a character.
        """
        return self.told(self.checked_scores(texts, second))

    def checked_scores(
        self, texts: Sequence[str], second: Sequence[str] | None = None, *, independent: bool = False
    ) -> Tensor:
        """The scores (n, outputs) of texts that were checked; as `predict` and `scores`."""
        for given in (texts, second) if second is not None else (texts,):
            check_texts(given)
        if (second is not None) != self.recipe.is_of_pairs:
            learned, found = ("pairs", "single texts") if self.recipe.is_of_pairs else ("single texts", "pairs")
            raise UserError(f"{self.folder}: expected {learned}, as in the run's training data, found {found}")
        if not len(texts):
            return torch.zeros(0, self.outputs)
        return self.scores(self.encode(texts, second), independent=independent)


class Predicting(Finished[Predictions]):
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


@dataclass(frozen=True)
class LoadedRun(Network, Predicting):
    """A finished fine-tuning run."""

    folder: Path
    result: Run

    @property
    def task(self) -> str:
        return self.result.task

    def scores(self, examples: Examples, tokens_at_a_time: int | None = None, *, independent: bool = False) -> Tensor:
        return self.computed(examples, tokens_at_a_time, whole=True, independent=independent)

    def read_weights(self, model: ClassificationModel) -> None:
        load_weights(model, decided(read_checkpoint(self.weights))["model"], self.weights)


@dataclass(frozen=True)
class PretrainedNetwork(Network):
    """The encoder of an experiment, with a head that is of no use."""

    @property
    def decisive(self) -> Mapping[str, Any]:
        # Of config.json, which may change; a run's own is in the file of its weights.
        return {**super().decisive, "model": self.config.model.model_dump(mode="json", by_alias=True)}

    def read_weights(self, model: ClassificationModel) -> None:
        weights = pretrained_in(read_checkpoint(self.weights), self.weights).encoder
        load_weights(model.encoder, {name.removeprefix(ENCODER): each for name, each in weights.items()}, self.weights)


@dataclass(frozen=True)
class Embedding(Finished[Vectors]):
    """The pooled vectors of an encoder, such as a finished run's head gets.

    Args:
        name: of the run's task, or of the experiment.
    """

    folder: Path
    name: str
    network: Network

    def __post_init__(self) -> None:
        for name in ("recipe", "weights"):
            object.__setattr__(self, name, getattr(self.network, name))

    @property
    def task(self) -> str:
        return self.name

    @property
    def outputs(self) -> int:
        return self.network.config.model.transformer_dim

    @property
    def header(self) -> tuple[str, ...]:
        return tuple(f"v_{number}" for number in range(self.outputs))

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {**self.network.decisive, "embed": True}

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Examples:
        return self.network.encode(texts, second)

    def scores(self, examples: Examples, tokens_at_a_time: int | None = None, *, independent: bool = False) -> Tensor:
        return self.network.computed(examples, tokens_at_a_time, whole=False, independent=independent)

    def told(self, scores: Tensor, *, independent: bool = False) -> Vectors:
        return Vectors(scores.numpy())


@dataclass(frozen=True)
class LoadedWords(Predicting):
    """The regression on words that is kept beside a run."""

    folder: Path
    result: Run
    recipe: Recipe
    weights: Path
    words: Words

    @property
    def task(self) -> str:
        return self.result.task

    @property
    def decisive(self) -> Mapping[str, Any]:
        return {"baseline": True}

    def encode(self, texts: Sequence[str], second: Sequence[str] | None = None) -> Texts:
        return self.recipe.texts_of(texts, second)

    def scores(self, examples: Texts, tokens_at_a_time: int | None = None, *, independent: bool = False) -> Tensor:
        return torch.from_numpy(self.words.scores(examples))


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


def load_run(folder: str | Path, device: str = "auto") -> LoadedRun:
    """A finished run of run_classify.py, run_glue.py or run_imdb.py, after the epoch that was best on the validation
    data.

    Args:
        folder: with its result.json.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        UserError: no finished run there, one of another task, or its weights or tokenizer are gone.
    """
    folder = Path(folder)
    result, recipe = _opened(folder)
    path = folder / f"{epoch_name(result.choose('best').epoch)}.model"
    config = experiment_config(read_checkpoint(path, mmap=True)["config"], str(path))
    return LoadedRun(
        recipe=recipe,
        config=config,
        tokenizer=load_tokenizer(result.tokenizer),
        weights=path,
        device=choose_device(device, config.model.mixed_precision),
        length=result.length,
        pad_to=result.settings.pad_to,
        folder=folder,
        result=result,
    )


def load_finished(
    folder: str | Path, device: str = "auto", embed: bool = False, baseline: bool = False
) -> Finished[Any]:
    """A finished run, its encoder (`embed`), or the regression on words that is kept beside it (`baseline`); with
    `embed` also the encoder of an experiment, after its last epoch.

    Raises:
        UserError: as `load_run`, as `load_words`, or as `load_encoder`.
    """
    if baseline:
        return load_words(folder)
    if embed and is_experiment(Path(folder)):
        return load_encoder(folder, device)
    run = load_run(folder, device)
    return Embedding(run.folder, run.task, run) if embed else run


def is_experiment(folder: Path) -> bool:
    """Whether a folder is an experiment's; its runs lie below it."""
    return (folder / "config.json").is_file()


def load_encoder(folder: str | Path, device: str = "auto") -> Embedding:
    """The encoder of an experiment after its last epoch, as it pools; texts are in a column `text`, and read up to the
    length that the model takes.

    Raises:
        UserError: no checkpoint there, its tokenizer is gone, or weights that are not of config.json's model.
    """
    experiment = open_experiment(Path(folder))
    opened = open_pretrained(experiment, "last")
    config = experiment.config
    network = PretrainedNetwork(
        recipe=Recipe(Answer("value"), ("text",), ()),
        config=config,
        tokenizer=find_tokenizer(experiment, opened.tokenizer_sha256),
        weights=opened.path,
        device=choose_device(device, config.model.mixed_precision),
        length=config.model.max_seq_len,
        pad_to=config.model.fixed_length,
    )
    return Embedding(experiment.folder, experiment.name, network)


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
    from nystromformer.tasks.finetuning.linear import WORDS_FILE, Words

    path = folder.parent / result.words / WORDS_FILE
    return LoadedWords(folder, result, recipe, path, Words.read(path))


def _opened(folder: Path) -> tuple[Run, Recipe]:
    result = open_run(folder)
    return result, recipe_in(result.texts, folder)
