"""Linear models by scikit-learn: on words and pairs of neighbouring words by tf-idf (`Words`), which every encoder is
compared with, and which may be served in its place; and on vectors of an encoder that keeps its weights (`--freeze`).

Shapes: n texts, F features, E width, C outputs as of the task's head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from nystromformer.data.counter import permute
from nystromformer.model import ClassificationModel
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.target import NEVER, Classes, Guessed, Value
from nystromformer.training.archive import FORMAT, read_checkpoint, write_checkpoint

WORDS_FILE = "words.model"
"""In a folder beside the runs."""
_WORD_STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""L2 penalties to choose from, strongest first: the factor of half the squared weights beside the rows' summed loss."""
_VECTOR_STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
"""The same beside the rows' mean loss."""
_WORSE = 2
"""Penalties in a row that did no better, after which no weaker one is tried: those take longest."""
_LIMITS: dict[str, Any] = {"tol": 1e-6, "max_iter": 2000}
_MOST_FEATURES = 100_000
_SCALE = 10.0
"""Of rows of tf-idf, which have norm 1."""
_HEAD_SCALE = 2.0**-8
"""By which the head's first layer scales a vector, so that its tanh leaves it as it is: of a number of 2 it takes
2e-5. A power of two rounds nothing."""
_HELD_OUT_STREAM = 40


@dataclass(frozen=True)
class Linear:
    """A fitted model: scores (n, C) are logits of classes or questions, or values."""

    weight_CF: NDArray[Any]
    bias_C: NDArray[Any]
    strength: float

    def scores(self, x_nF: Any) -> NDArray[Any]:
        return np.asarray(x_nF @ self.weight_CF.T + self.bias_C)


def fit(target: Guessed, x_nF: Any, labels: Labels, strength: float) -> Linear:
    """Logistic regression of classes and of each of several questions, ridge regression of values; the penalty spares
    the bias, and rows count as the target's weights say.
    """
    if isinstance(target, Value):
        model = Ridge(alpha=strength, solver="sparse_cg", **_LIMITS).fit(x_nF, labels)
        return Linear(model.coef_.reshape(1, -1), np.reshape(model.intercept_, 1), strength)
    weights = np.ones(len(labels))
    if given := getattr(target, "weights", None):
        weights = np.where(labels > 0, given, 1.0) if labels.ndim > 1 else np.asarray(given)[labels]
    if isinstance(target, Classes):
        return Linear(*_fit_classes(x_nF, labels, weights, target.count, strength), strength)
    answers_nC = target.answers(torch.from_numpy(labels)).numpy().astype(np.int64)
    weights_nC = np.broadcast_to(weights.reshape(len(labels), -1), answers_nC.shape)
    parts = [_fit_classes(x_nF, *each, 2, strength) for each in zip(answers_nC.T, weights_nC.T, strict=True)]
    return Linear(np.stack([w[1] - w[0] for w, _ in parts]), np.array([b[1] - b[0] for _, b in parts]), strength)


def _fit_classes(
    x_nF: Any, labels: Labels, weights: NDArray[np.float64], count: int, strength: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (C, F) and bias (C,); a class that no row is of is next to impossible."""
    weight_CF, bias_C = np.zeros((count, x_nF.shape[1])), np.full(count, np.log(NEVER))
    present = np.unique(labels)
    bias_C[present] = 0.0
    if len(present) > 1:
        # Of two classes it has the difference of their weights alone, whose square is twice the sum of theirs.
        model = LogisticRegression(C=(2 if len(present) == 2 else 1) / strength, **_LIMITS)
        model.fit(x_nF, labels, sample_weight=weights)
        chosen = present[-len(model.coef_) :]
        weight_CF[chosen], bias_C[chosen] = model.coef_, model.intercept_
    return weight_CF, bias_C


def choose(
    target: Guessed, train: tuple[Any, Labels], held_out: tuple[Any, Labels], strengths: Sequence[float]
) -> Linear:
    """The model of training rows, features (n, F) and labels, whose penalty gives the lowest loss on others."""
    labels = torch.from_numpy(held_out[1])
    labels = labels.double() if labels.is_floating_point() else labels
    best, least, worse = None, np.inf, 0
    for strength in strengths:
        linear = fit(target, *train, strength)
        loss = float(target.losses(torch.from_numpy(linear.scores(held_out[0])), labels).mean())
        if best is None or loss < least:
            best, least, worse = linear, loss, 0
        elif (worse := worse + 1) == _WORSE:
            break
    assert best is not None, "there are penalties"
    return best


@dataclass(frozen=True)
class Words:
    """A linear model on words and pairs of words of whole texts; each text of a pair has features of its own."""

    vectorizers: list[TfidfVectorizer]
    """Of the first text of each row and, of pairs, of the second."""
    linear: Linear
    """In float32; its penalty was chosen on a tenth of the training rows."""

    def scores(self, texts: Texts) -> NDArray[np.float32]:
        """(n, C)."""
        return self.linear.scores(_features(self.vectorizers, texts)).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write it to a file."""
        arrays = {"weight": self.linear.weight_CF, "bias": self.linear.bias_C}
        arrays |= {f"idf_{number}": each.idf_ for number, each in enumerate(self.vectorizers)}
        content = {
            "format": FORMAT,
            "model": {name: torch.from_numpy(array) for name, array in arrays.items()},
            "words": [each.get_feature_names_out().tolist() for each in self.vectorizers],
            "strength": self.linear.strength,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(content, path)

    @classmethod
    def read(cls, path: Path) -> "Words":
        """What `save` wrote.

        Raises:
            UserError: it is not there, or damaged.
        """
        content = read_checkpoint(path)
        arrays = {name: array.numpy() for name, array in content["model"].items()}
        vectorizers = list(map(_vectorizer, content["words"]))
        for number, vectorizer in enumerate(vectorizers):
            vectorizer.idf_ = arrays[f"idf_{number}"]
        return cls(vectorizers, Linear(arrays["weight"], arrays["bias"], content["strength"]))


def fit_words(target: Guessed, texts: Texts) -> Words:
    """The model of training texts: its penalty is chosen by nine tenths of the rows on the others; the strongest for
    under ten rows.
    """
    assert texts.labels is not None
    vectorizers = []
    for column in filter(None, (texts.first, texts.second)):
        has_words = any(map(_vectorizer().build_analyzer(), column))
        vectorizers.append(_vectorizer(None if has_words else [""]).fit(column))
    x_nF, labels, strength = _features(vectorizers, texts), texts.labels, _WORD_STRENGTHS[0]
    if held := len(texts) // 10:
        outside = np.zeros(len(texts), dtype=bool)
        outside[permute(np.arange(held), len(texts), 0, _HELD_OUT_STREAM)] = True
        inner, outer = ((x_nF[rows], labels[rows]) for rows in (~outside, outside))
        strength = choose(target, inner, outer, _WORD_STRENGTHS).strength
    linear = fit(target, x_nF, labels, strength)
    return Words(vectorizers, Linear(linear.weight_CF.astype(np.float32), linear.bias_C.astype(np.float32), strength))


def _features(vectorizers: Sequence[TfidfVectorizer], texts: Texts) -> csr_matrix:
    """(n, F) float64; none of words that no training text has."""
    columns = [texts.first] if texts.second is None else [texts.first, texts.second]
    parts = [_SCALE * each.transform(column) for each, column in zip(vectorizers, columns, strict=True)]
    return hstack(parts, format="csr")


def _vectorizer(words: Sequence[str] | None = None) -> TfidfVectorizer:
    """One to be fitted, or one of these words in their order."""
    return TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        token_pattern=r"\w+",
        max_features=_MOST_FEATURES,
        dtype=np.float64,
        vocabulary=words,
    )


def put_head(
    model: ClassificationModel, target: Guessed, train: tuple[Tensor, Labels], held: tuple[Tensor, Labels]
) -> None:
    """Give a model the head that is best for its vectors (n, E): of training rows, with the penalty that gives the
    lowest loss on validation rows.
    """
    vectors_nE = train[0].double().numpy()
    mean_E, deviation_E = vectors_nE.mean(0), np.maximum(vectors_nE.std(0), 1e-6)
    rows, others = (((each[0].double().numpy() - mean_E) / deviation_E, each[1]) for each in (train, held))
    found = choose(target, rows, others, [len(vectors_nE) * strength for strength in _VECTOR_STRENGTHS])
    weight_CE = found.weight_CF / deviation_E
    head = {
        "dense.weight": _HEAD_SCALE * torch.eye(len(mean_E)),
        "dense.bias": torch.zeros(len(mean_E)),
        "classifier.weight": torch.from_numpy(weight_CE / _HEAD_SCALE),
        "classifier.bias": torch.from_numpy(found.bias_C - weight_CE @ mean_E),
    }
    model.head.load_state_dict(head)
