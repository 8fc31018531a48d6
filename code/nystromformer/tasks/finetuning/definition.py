"""What a fine-tuning task tells the machinery that runs it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.target import Target, accuracy


@dataclass(frozen=True)
class Loading:
    """How the examples shall be made."""

    vocabulary: Tokenizer | None
    """The checkpoint's, with the task's own tokens at its end; None for tasks that have their own kinds of token."""
    length: int
    """Tokens of the longest row."""
    sentence_types: bool
    """Whether the model tells the two sentences of a row apart."""
    train_rows: int | None
    """Train on so many examples; None: on all."""
    most_global: int | None = None
    """First tokens of a row that may be marked as global; None: any number."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What tasks on text read with."""
        assert self.vocabulary is not None, "a task on text begins with a checkpoint, which has one"
        return self.vocabulary


@dataclass
class Splits:
    """The examples of a task that has labels."""

    train: Examples
    validation: dict[str, Examples]
    """By the ending of its metrics' names, "" for the one that the main metric is of."""
    warnings: list[str] = field(default_factory=list)
    """Why the figures may not be comparable with those of others."""
    notes: list[str] = field(default_factory=list)
    recipe: str = ""
    """What decides, beside the examples, what is learned from them, such as the weights of classes."""
    shown: str = ""
    """Fingerprint of what prediction files show of the rows beside their scores, such as their names: of those held
    out, and after a blank of those to test on.
    """
    test_warnings: list[str] = field(default_factory=list)
    """Why the figures of test data may not be comparable."""
    positive: str = ""
    """What label 1 of two is called, where it has a name."""

    @property
    def named(self) -> dict[str, Examples]:
        """All splits by what results call them: train, validation, validation_mismatched."""
        return {"train": self.train} | {f"validation{ending}": x for ending, x in self.validation.items()}

    @property
    def fingerprint(self) -> str:
        """Equal for equal examples."""
        parts = [self.train.fingerprint, *(f"{k}={v.fingerprint}" for k, v in self.validation.items())]
        parts += [self.recipe] if self.recipe else []
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class Definition(ABC):
    """A fine-tuning task: data, what is learned of them, metrics, and what predictions look like."""

    kind: str
    """The command's name, as its declaration has it, such as "glue"."""
    choices: Mapping[str, Any] = MappingProxyType({})
    """What the command asks of its data, as plain data: tables name their columns by it."""
    name: str
    """Where its runs lie below the checkpoints, such as "glue/MRPC"."""
    kinds: int | None = None
    """Kinds of token that the model tells apart; None for a task on text, which begins with a checkpoint and reads with
    its tokenizer.
    """
    target: Target
    """What is learned."""
    main_metric: str
    """By which an epoch and settings are chosen; the highest is the best."""

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """The checkpoint's tokenizer with the task's own tokens at its end; not called where `kinds` is given."""
        return tokenizer

    def fit_length(self, tokenizer: Tokenizer, most: int) -> int:
        """Tokens of the longest row that suit its texts, `most` at most, where none are asked for."""
        return most

    @abstractmethod
    def load(self, loading: Loading) -> Splits:
        """Training and validation data; test data are read, too, so that what is wrong is known before training."""

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        """What training does to a batch of the examples of these numbers, such as masking tokens: a function of (seed,
        step, number) alone, so that a run resumes exactly in any number of processes. Usually nothing.
        """
        return batch

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        """Metrics of a split from all of its scores; "accuracy" and the like, 1 is the best."""
        return {"accuracy": accuracy(scores_NC, labels_N)}

    @abstractmethod
    def test(self, loading: Loading) -> dict[str, Examples]:
        """Data for predictions, by name; made only once the best run is known."""

    @abstractmethod
    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """Write prediction files into a folder, of scores of the validation data (by the endings) and the test data (by
        their names); gives the metrics of test data that has labels.
        """

    def rules(self, splits: Splits, compared: Mapping[str, Examples]) -> dict[str, dict[str, Spread]]:
        """Metrics of the task's own simple rules, by the rule's name, for `--baselines`, on the splits with labels by
        the ending of their metrics' names; usually none.
        """
        return {}

    def texts(self) -> dict[str, Any] | None:
        """What predicting other texts needs beside a run's weights and tokenizer, as plain data; None where no run
        predicts others.
        """
        return None
