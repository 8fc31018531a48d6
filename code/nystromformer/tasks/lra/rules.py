"""The strongest simple rules of each task of the Long Range Arena, the scale that its scores are read against. They are
fitted on training examples, as the models see them; where a rule has variants, validation chooses one.

Shapes: n examples, P pixels, F features.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import hstack
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import normalize

from nystromformer.data.counter import permute
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.listops import END_OF_LIST, FIRST_OPERATOR, apply

_MOST_BYTES = 100_000_000
"""Of training texts that n-grams are counted in; of longer data some examples are drawn."""
_SUBSET_STREAM = 42

Features = Callable[[StoredExamples], Any]


@dataclass(frozen=True)
class Rule:
    """A way to predict.

    features: of a split, one row or entry for each example.
    variants: estimators in scikit-learn's manner; the first of the best on validation is taken.
    most_tokens: it is fitted on no more training tokens than these; None: on all.
    """

    name: str
    features: Features
    variants: Sequence[Any]
    most_tokens: int | None = None

    def accuracies(
        self, train: StoredExamples, validation: StoredExamples, compared: Mapping[str, StoredExamples]
    ) -> dict[str, float]:
        """Fit, choose, and score on other splits, by their keys."""
        count = int(min(1.0, (self.most_tokens or math.inf) / int(train.tokens.sum())) * len(train))
        if count < len(train):
            train = train.take(np.sort(permute(np.arange(max(1, count)), len(train), 0, _SUBSET_STREAM)))
        inputs = self.features(train)
        with warnings.catch_warnings():
            # A regression that stops early is a rule like any other: validation chooses.
            warnings.filterwarnings("ignore", "lbfgs failed to converge")
            fitted = [variant.fit(inputs, train.labels) for variant in self.variants]
        chosen = fitted[0]
        if len(fitted) > 1:
            known = self.features(validation)
            chosen = fitted[int(np.argmax([np.mean(one.predict(known) == validation.labels) for one in fitted]))]
        return {
            key: float(np.mean(chosen.predict(self.features(split)) == split.labels)) for key, split in compared.items()
        }


def build_rules(task: str) -> list[Rule]:
    """The rules of a task, simplest first."""
    if task == "listops":
        names = ("outermost operator", "operator and direct digits", "operator, direct digits and next operators")
        return [Rule(name, _keys(count), [Table()]) for count, name in enumerate(names, start=1)]
    if task in ("text", "retrieval"):
        return [Rule("byte n-grams", _count_grams, _regressions(1, 10, 100), _MOST_BYTES)]
    if task == "image":
        neighbours = [KNeighborsClassifier(count) for count in (1, 3, 5, 10, 20, 50)]
        linear = Rule("linear on pixels", _pixels, _regressions(0.001, 0.01, 0.1, 1))
        return [linear, Rule("nearest neighbours", _pixels, neighbours)]
    return [Rule("linear on pixels", _pixels, _regressions(0.0001, 0.001, 0.01))]


def _regressions(*strengths: float) -> list[Any]:
    """Logistic regressions of these inverse penalties."""
    return [LogisticRegression(C=strength, max_iter=300, tol=1e-3) for strength in strengths]


@dataclass
class Table:
    """The most frequent class of each key, the smallest of several; of an unknown key that of a coarser one.

    A key is a tuple, whose beginning is the coarser key.
    """

    def fit(self, keys: Sequence[tuple[Hashable, ...]], labels: Ints) -> Table:
        counts: defaultdict[tuple[Hashable, ...], Counter[int]] = defaultdict(Counter)
        for key, label in zip(keys, labels.tolist(), strict=True):
            for depth in range(len(key) + 1):
                counts[key[:depth]][label] += 1
        self._best = {key: min(found, key=lambda c: (-found[c], c)) for key, found in counts.items()}
        return self

    def predict(self, keys: Sequence[tuple[Hashable, ...]]) -> Ints:
        def guess(key: tuple[Hashable, ...]) -> int:
            while key not in self._best:
                key = key[:-1]
            return self._best[key]

        return np.array([guess(key) for key in keys])


def _read_outermost(tokens: Iterable[int]) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Of the outermost list of an expression or of its beginning: its operator, by its place in OPERATORS, None of a
    digit alone; what it makes of the digits that the list holds directly; and the operators of the lists in it.
    """
    digits, operators, depth = list[int](), list[int](), 0
    for token in tokens:
        if token < FIRST_OPERATOR:
            digits += [token] if depth == 1 or not operators else []
        elif token < END_OF_LIST:
            operators += [token - FIRST_OPERATOR] if depth < 2 else []
            depth += 1
        elif token == END_OF_LIST:
            depth -= 1
    nested = tuple(sorted(operators[1:]))
    if not operators:
        return None, digits[0] if digits else None, nested
    return operators[0], apply(operators[0], digits) if digits else None, nested


def _keys(count: int) -> Features:
    """The first so many of what there is of the outermost list."""
    return lambda split: [_read_outermost(tokens.tolist())[:count] for tokens in split.sequences()]


def _count_grams(split: StoredExamples) -> Any:
    """Weights of 2 to 5 consecutive bytes: 1 + the logarithm of their counts, by hashes, of length 1."""
    hashing = HashingVectorizer(
        analyzer="char", ngram_range=(2, 5), lowercase=False, norm=None, alternate_sign=False, n_features=1 << 20
    )
    sides = []
    for sequence in range(split.num_sequences):
        # A character each byte.
        x_nF = hashing.transform([tokens.tobytes().decode("latin-1") for tokens in split.sequences(sequence)])
        x_nF.data = 1 + np.log(x_nF.data)
        sides.append(normalize(x_nF, copy=False))
    if len(sides) == 1:
        return sides[0]
    first, second = sides
    return hstack([first, second, abs(first - second)], format="csr")


def _pixels(split: StoredExamples) -> NDArray[np.float32]:
    """(n, P), from 0 to 1; of a picture that was cut its beginning."""
    rows_nP = np.zeros((len(split), split.length), dtype=np.float32)
    for row_P, tokens in zip(rows_nP, split.sequences(), strict=True):
        row_P[: len(tokens)] = tokens
    return rows_nP[:, : int(split.lengths.max())] / np.float32(255)
