"""A regression on words and pairs of neighbouring words by tf-idf, as a model: what every encoder is compared with, the
same for all of them, and cheap enough to be served in their place.

Shapes: n texts, F features, C outputs as of the task's head.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix, hstack
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer

from nystromformer.errors import UserError
from nystromformer.files.reading import read_bytes
from nystromformer.files.writing import NewFile, write_json
from nystromformer.tasks.finetuning.bag_of_words import Answered, Fitted, Sample, choose_strength
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.target import NEVER

_MOST_FEATURES = 100_000
"""Words and pairs of words, the most frequent ones."""
_SCALE = 10.0
"""Of rows of tf-idf, which have norm 1: about the norm of a bag of 100 tokens, so that the same penalties suit both."""
FACTS, _ARRAYS = "words.json", "words.safetensors"
_FORMAT = 1
_MOST_BYTES = 1 << 30

Vectorizers = Sequence[TfidfVectorizer | None]
"""Of the first text of each row and, of pairs, of the second; None where no text has a word."""


@dataclass(frozen=True)
class Words:
    """A fitted regression."""

    vectorizers: Vectorizers
    weight_CF: NDArray[np.float32]
    bias_C: NDArray[np.float32]
    strength: float
    """The L2 penalty, chosen on a tenth of the training rows."""

    def scores(self, texts: Texts) -> NDArray[np.float32]:
        """(n, C): the logits of classes or questions, or the value."""
        scores_nC = features(self.vectorizers, texts) @ self.weight_CF.T + self.bias_C
        return np.asarray(scores_nC, dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Write it to a folder, which is whole once it has `words.json`.

        Raises:
            UserError: it cannot be written.
        """
        arrays = {"weight": self.weight_CF, "bias": self.bias_C}
        words: list[list[str]] = []
        for number, vectorizer in enumerate(self.vectorizers):
            words.append([] if vectorizer is None else vectorizer.get_feature_names_out().tolist())
            if vectorizer is not None:
                arrays[f"idf_{number}"] = vectorizer.idf_
        with NewFile(folder / _ARRAYS) as file:
            file.write(save(arrays))
        facts = {"format": _FORMAT, "words": words, "strength": self.strength, "sha256": file.stamp.sha256}
        write_json(folder / FACTS, facts)

    @classmethod
    def read(cls, folder: Path) -> "Words | None":
        """What `save` wrote; None where nothing is.

        Raises:
            UserError: something else is there, or a part is missing.
        """
        path = folder / FACTS
        if not path.is_file():
            return None
        try:
            facts = json.loads(read_bytes(path, _MOST_BYTES, "words"))
            content = read_bytes(folder / _ARRAYS, _MOST_BYTES, "a regression")
            if facts["format"] != _FORMAT or hashlib.sha256(content).hexdigest() != facts["sha256"]:
                raise ValueError("another format, or another file beside it")
            arrays = load(content)
            vectorizers = [
                _vectorizer(words, arrays[f"idf_{number}"]) if words else None
                for number, words in enumerate(facts["words"])
            ]
            return cls(vectorizers, arrays["weight"], arrays["bias"], float(facts["strength"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{folder}: damaged: expected a regression on words ({error}). Remove the folder: the same training "
                "command creates it again"
            ) from error


def fit_words(texts: Texts, labels: Labels, num_classes: int | None) -> Words:
    """The regression of training rows.

    Args:
        labels, num_classes: as of Sample.
    """
    vectorizers = vectorizers_of(texts)
    sample = Sample(features(vectorizers, texts), labels, num_classes)
    strength = choose_strength(sample)
    weight_CF, bias_C = _linear(sample.fit(strength), sample.x_nF.shape[1])
    return Words(vectorizers, weight_CF.astype(np.float32), bias_C.astype(np.float32), strength)


def vectorizers_of(texts: Texts) -> Vectorizers:
    """By all words and pairs of words of the whole texts, however long; each text of a pair has features of its own."""
    found: list[TfidfVectorizer | None] = []
    for column in (texts.first, *([] if texts.second is None else [texts.second])):
        vectorizer = _vectorizer()
        find = vectorizer.build_analyzer()
        found.append(vectorizer.fit(column) if any(map(find, column)) else None)
    return found


def features(vectorizers: Vectorizers, texts: Texts) -> csr_matrix:
    """(n, F) float64; none of words that no training text has."""
    columns = (texts.first, *([] if texts.second is None else [texts.second]))
    parts = [
        csr_matrix((len(texts), 1)) if vectorizer is None else _SCALE * vectorizer.transform(column)
        for vectorizer, column in zip(vectorizers, columns, strict=True)
    ]
    return hstack(parts, format="csr")


def _vectorizer(words: Sequence[str] | None = None, idf: NDArray[np.float64] | None = None) -> TfidfVectorizer:
    """One to be fitted, or one of these words in their order."""
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        token_pattern=r"\w+",
        max_features=_MOST_FEATURES,
        dtype=np.float64,
        vocabulary=None if words is None else {word: number for number, word in enumerate(words)},
    )
    if idf is not None:
        vectorizer.idf_ = idf
    return vectorizer


def _linear(fitted: Fitted, num_features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (C, F) and bias (C,) of the scores. A class that no row is of is next to impossible."""
    if isinstance(fitted, Answered):
        parts = [_linear(question, num_features) for question in fitted.regressions]
        return np.stack([w[1] - w[0] for w, _ in parts]), np.array([b[1] - b[0] for _, b in parts])
    model: Any = fitted.model
    if fitted.num_classes is None:
        return model.coef_.reshape(1, -1), np.array([model.intercept_]).reshape(1)
    weight_CF = np.zeros((fitted.num_classes, num_features))
    bias_C = np.full(fitted.num_classes, np.log(NEVER))
    bias_C[model.classes_] = 0.0
    if not isinstance(model, DummyClassifier):
        # Of two classes it has the weights of the second one against the first.
        chosen = model.classes_[-len(model.coef_) :]
        weight_CF[chosen], bias_C[chosen] = model.coef_, model.intercept_
    return weight_CF, bias_C
