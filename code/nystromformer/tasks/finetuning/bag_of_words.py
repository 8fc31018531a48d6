"""Regressions on which tokens a row has, by scikit-learn: logistic of classes and of each of several questions, ridge
of values.

Shapes: n rows, F features, C outputs: classes, one value, or questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, mean_squared_error

from nystromformer.data.counter import permute, random_bits
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Ints, Labels
from nystromformer.tasks.finetuning.target import NEVER

STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""L2 penalties to choose from, strongest first: the factor of half the squared weights beside the rows' summed loss."""
_TOLERANCE, _MOST_STEPS = 1e-6, 2000
_WORSE = 2
"""Penalties in a row that did no better, after which no weaker one is tried."""
_HELD_OUT_STREAM, _RESAMPLE_STREAM = 40, 41
_FIRST, _SECOND, _COMMON = range(3)


@dataclass(frozen=True)
class Sample:
    """Rows to learn from, or to be scored on."""

    x_nF: csr_matrix
    """What a row has of each feature, float64."""
    labels_n: Labels
    """Classes or values, or 0 and 1 as the answers to questions, (n, C)."""
    num_classes: int | None
    """None where the label is no class."""

    def __len__(self) -> int:
        return len(self.labels_n)

    def take(self, numbers: Ints) -> "Sample":
        """Rows by their numbers, in this order, each as often as it is named."""
        return Sample(self.x_nF[numbers], self.labels_n[numbers], self.num_classes)

    def questions(self) -> "list[Sample]":
        """One for each question."""
        return [Sample(self.x_nF, answers_n, 2) for answers_n in self.labels_n.T]

    def fit(self, strength: float) -> "Fitted":
        """The regression of these rows, whose penalty spares the bias; for questions one of each."""
        if self.labels_n.ndim > 1:
            return Answered([question.fit(strength) for question in self.questions()])
        model: Any
        limits = {"tol": _TOLERANCE, "max_iter": _MOST_STEPS}
        if self.num_classes is None:
            model = Ridge(alpha=strength, solver="sparse_cg", **limits)
        elif (classes := len(np.unique(self.labels_n))) == 1:
            model = DummyClassifier()  # the regression refuses a single class
        else:
            # Of two classes it has the difference of their weights alone, whose square is twice the sum of theirs.
            model = LogisticRegression(C=(2 if classes == 2 else 1) / strength, **limits)
        return Regression(model.fit(self.x_nF, self.labels_n), self.num_classes)


@dataclass(frozen=True)
class Regression:
    """A fitted one."""

    model: Any
    """scikit-learn's."""
    num_classes: int | None

    def scores(self, x_nF: csr_matrix) -> NDArray[np.float64]:
        """(n, C): each class' probability, 0 of those that no row was of; or the value."""
        if self.num_classes is None:
            values_nC: NDArray[np.float64] = self.model.predict(x_nF)[:, None]
            return values_nC
        chances_nC = np.zeros((x_nF.shape[0], self.num_classes))
        chances_nC[:, self.model.classes_] = self.model.predict_proba(x_nF)
        return chances_nC

    def loss(self, sample: Sample) -> float:
        """The mean over the rows, without penalty."""
        scores_nC = self.scores(sample.x_nF)
        if self.num_classes is None:
            return float(mean_squared_error(sample.labels_n, scores_nC[:, 0]))
        return float(log_loss(sample.labels_n, scores_nC, labels=range(self.num_classes)))


@dataclass(frozen=True)
class Answered:
    """A regression for each question."""

    regressions: "Sequence[Fitted]"

    def scores(self, x_nF: csr_matrix) -> NDArray[np.float64]:
        """(n, C): the logit of each question's yes."""
        yes_nC = np.stack([regression.scores(x_nF)[:, 1] for regression in self.regressions], axis=1)
        logits_nC: NDArray[np.float64] = torch.logit(torch.from_numpy(yes_nC), eps=NEVER).numpy()
        return logits_nC

    def loss(self, sample: Sample) -> float:
        """The mean over the rows of the questions' sum."""
        return sum(own.loss(one) for own, one in zip(self.regressions, sample.questions(), strict=True))


Fitted = Regression | Answered


def features_of(tokens: Ints) -> list[int]:
    """The features of a row `<s> A </s>` or `<s> A </s> B </s>`: three numbers for each token, in A, in B, in both."""
    *between, end = tokens.tolist()
    # No text holds the token of `</s>`. That of `<s>`, which all rows have, counts as one of A: no row is without any.
    middle = between.index(end) if end in between else len(between)
    first, second = set(between[:middle]), set(between[middle + 1 :])
    blocks = ((_FIRST, first), (_SECOND, second), (_COMMON, first & second))
    return [3 * token + block for block, members in blocks for token in members]


def samples(
    train: EncodedTexts, others: Sequence[EncodedTexts], labels: Labels, num_classes: int | None
) -> tuple[Sample, list[csr_matrix]]:
    """The training rows, and the others' features; those that no training row has are left out.

    Args:
        labels, num_classes: as of Sample.
    """
    vectorizer = CountVectorizer(analyzer=features_of, binary=True, dtype=np.float64)
    x_nF = vectorizer.fit_transform(_rows(train))
    return Sample(x_nF, labels, num_classes), [vectorizer.transform(_rows(examples)) for examples in others]


def _rows(examples: EncodedTexts) -> list[Ints]:
    return [examples.tokens_of(number) for number in range(len(examples))]


def choose_strength(train: Sample) -> float:
    """The penalty whose weights of nine tenths of the rows do best on the others; the strongest for under ten rows."""
    held = len(train) // 10
    if not held:
        return STRENGTHS[0]
    outside = np.zeros(len(train), dtype=bool)
    outside[permute(np.arange(held), len(train), 0, _HELD_OUT_STREAM)] = True
    inner, outer = (train.take(rows) for rows in (np.flatnonzero(~outside), np.flatnonzero(outside)))
    losses: list[float] = []
    for strength in STRENGTHS:
        losses.append(inner.fit(strength).loss(outer))
        if len(losses) - losses.index(min(losses)) > _WORSE:
            break  # weaker ones take longest, and do no better
    return STRENGTHS[losses.index(min(losses))]


def resample(train: Sample, seed: int) -> Sample:
    """As many rows as there are, drawn with replacement."""
    bits = random_bits(seed, _RESAMPLE_STREAM, np.arange(len(train)))
    return train.take((bits % np.uint64(len(train))).astype(np.int64))
