"""Linear models by scikit-learn: on words and pairs of neighbouring words by tf-idf (`Words`), which every encoder is
compared with; and on vectors of an encoder that keeps its weights (`--freeze`).

Shapes: n texts, F features, E width, C outputs as of the task's head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from nystromformer.data.counter import permute
from nystromformer.model import ClassificationModel
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.target import NEVER, Classes, Pooled, Questions, Value, vectors_of
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.training.checkpoint import FORMAT, epoch_name, hold_folder, write_checkpoint
from nystromformer.training.state import Validated

_WORD_STRENGTHS = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""L2 penalties to choose from, strongest first: the factor of half the squared weights beside the rows' summed loss."""
_VECTOR_STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 3e-4, 1e-4, 3e-5, 1e-5)
"""The same beside the rows' mean loss."""
_LIMITS: dict[str, Any] = {"tol": 1e-6, "max_iter": 2000}
_TFIDF: dict[str, Any] = {"ngram_range": (1, 2), "sublinear_tf": True, "token_pattern": r"\w+", "max_features": 100_000}
_SCALE = 10.0
"""Of rows of tf-idf, which have norm 1."""
_HEAD_SCALE = 2.0**-8
"""By which the head's first layer scales a vector, so that its tanh leaves it as it is: of a number of 2 it takes
2e-5. A power of two rounds nothing."""
_HELD_OUT_STREAM = 40

Rows = tuple[Any, Labels]
"""Features (n, F) and labels."""
Fit = tuple[NDArray[Any], NDArray[Any]]
"""Weights (C, F) and biases (C,) of scores, which are logits of classes or questions, or values."""


def fit(target: Pooled, rows: Rows, strength: float) -> Fit:
    """Logistic regression of classes and of each of several questions, ridge regression of values; the penalty spares
    the bias, and rows count as the target's weights say.
    """
    x_nF, labels = rows
    if isinstance(target, Value):
        model = Ridge(alpha=strength, solver="sparse_cg", **_LIMITS).fit(x_nF, labels)
        return model.coef_.reshape(1, -1), np.reshape(model.intercept_, 1)
    weights_C = np.asarray(target.weights or np.ones(target.count))
    if isinstance(target, Classes):
        return _fit_classes(x_nF, labels, weights_C[labels], target.count, strength)
    assert isinstance(target, Questions)
    answers_nC = target.answers(torch.from_numpy(labels)).numpy().astype(np.int64)
    weights = np.where(labels > 0, weights_C, 1.0).T if labels.ndim > 1 else [weights_C[labels]] * target.outputs
    parts = [_fit_classes(x_nF, *each, 2, strength) for each in zip(answers_nC.T, weights, strict=True)]
    return np.stack([w[1] - w[0] for w, _ in parts]), np.array([b[1] - b[0] for _, b in parts])


def _fit_classes(x_nF: Any, labels: Labels, weights: NDArray[Any], count: int, strength: float) -> Fit:
    """A class that no row is of is next to impossible."""
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


def choose(target: Pooled, train: Rows, held_out: Rows, strengths: Sequence[float]) -> tuple[float, Fit]:
    """The penalty that gives the lowest loss on rows held out, and the model of the training rows with it."""
    x_nF, labels = held_out[0], torch.from_numpy(held_out[1])
    fits: list[Fit] = []
    losses: list[float] = []
    for strength in strengths:
        weight_CF, bias_C = fit(target, train, strength)
        fits.append((weight_CF, bias_C))
        losses.append(float(target.losses(torch.from_numpy(x_nF @ weight_CF.T + bias_C), labels).mean()))
        if len(losses) > np.argmin(losses) + 2:
            break  # After two that did no better, weaker ones, which take longest, are not tried.
    best = int(np.argmin(losses))
    return strengths[best], fits[best]


@dataclass(frozen=True)
class Words:
    """A linear model on words and pairs of words of whole texts; each text of a pair has features of its own."""

    vectorizers: list[TfidfVectorizer]
    """Of the first text of each row and, of pairs, of the second."""
    weight_CF: NDArray[np.float32]
    bias_C: NDArray[np.float32]

    def scores(self, texts: Texts) -> NDArray[np.float32]:
        """(n, C)."""
        return np.asarray(_features(self.vectorizers, texts) @ self.weight_CF.T + self.bias_C, np.float32)


def fit_words(target: Pooled, texts: Texts) -> Words:
    """The model of training texts: its penalty is chosen by nine tenths of the rows on the others; the strongest for
    under ten rows.
    """
    assert texts.labels is not None
    vectorizers = []
    for column in filter(None, (texts.first, texts.second)):
        has_words = any(map(TfidfVectorizer(**_TFIDF).build_analyzer(), column))
        vectorizers.append(TfidfVectorizer(**_TFIDF, vocabulary=None if has_words else [""]).fit(column))
    x_nF, labels, strength = _features(vectorizers, texts), texts.labels, _WORD_STRENGTHS[0]
    if held := len(texts) // 10:
        outside = np.zeros(len(texts), dtype=bool)
        outside[permute(np.arange(held), len(texts), 0, _HELD_OUT_STREAM)] = True
        inner, outer = ((x_nF[rows], labels[rows]) for rows in (~outside, outside))
        strength, _ = choose(target, inner, outer, _WORD_STRENGTHS)
    weight_CF, bias_C = fit(target, (x_nF, labels), strength)
    return Words(vectorizers, weight_CF.astype(np.float32), bias_C.astype(np.float32))


def _features(vectorizers: Sequence[TfidfVectorizer], texts: Texts) -> csr_matrix:
    """(n, F) float64; none of words that no training text has."""
    columns = zip(vectorizers, (texts.first, texts.second), strict=False)
    return hstack([_SCALE * each.transform(column) for each, column in columns], format="csr")


def fit_head(build: Callable[[bool], tuple[Finetuning, Mapping[str, Any]]], folder: Path) -> list[Validated]:
    """Fit a linear head to the vectors of the pretrained encoder, and write the model as weights of epoch 0; returns
    its one validation.
    """
    with hold_folder(folder):
        finetuning, facts = build(True)
        model, opened = finetuning.model, finetuning.opened
        assert isinstance(model, ClassificationModel)
        assert isinstance(opened.task.target, Pooled)
        model.eval()
        parts: list[Rows] = []
        for examples in (opened.splits.train, opened.splits.validation[""]):
            with torch.inference_mode(), opened.device.autocast():
                vectors = finetuning.scores(examples, vectors_of)
            assert examples.labels is not None
            parts.append((vectors.double().numpy(), examples.labels))
        put_head(model, opened.task.target, *parts)
        with torch.no_grad(), opened.device.autocast():
            history: list[Validated] = [{"epoch": 0, "step": 1, "metrics": finetuning.validate()}]
        weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
        content = {"format": FORMAT, **facts, "step": 1, "epoch": 0, "history": history, "model": weights}
        write_checkpoint(content, folder / f"{epoch_name(0)}.model")
    return history


def put_head(model: ClassificationModel, target: Pooled, train: Rows, held_out: Rows) -> None:
    """Give a model the head that is best for its vectors (n, E), as `choose` has it."""
    mean_E, deviation_E = train[0].mean(0), np.maximum(train[0].std(0), 1e-6)
    scaled, others = (((x_nE - mean_E) / deviation_E, labels) for x_nE, labels in (train, held_out))
    strengths = [len(train[0]) * strength for strength in _VECTOR_STRENGTHS]
    _, (weight_CE, bias_C) = choose(target, scaled, others, strengths)
    weight_CE = weight_CE / deviation_E
    head = {
        "dense.weight": _HEAD_SCALE * torch.eye(len(mean_E)),
        "dense.bias": torch.zeros(len(mean_E)),
        "classifier.weight": torch.from_numpy(weight_CE / _HEAD_SCALE),
        "classifier.bias": torch.from_numpy(bias_C - weight_CE @ mean_E),
    }
    model.head.load_state_dict(head)
