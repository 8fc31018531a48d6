"""The strongest simple rules of each task of the Long Range Arena: the scale that its scores are read against.

Each rule is fitted on the training examples; where it has variants, the validation examples choose one. They see what
the models see: the same examples, cut to the same length.

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

from nystromformer.data.counter import permute
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.lra.examples import StoredExamples
from nystromformer.tasks.lra.listops import END_OF_LIST, FIRST_OPERATOR, apply
from nystromformer.tasks.lra.pathfinder import styled

_MOST_BYTES = 100_000_000
"""Of training texts that n-grams are counted in; of longer data some examples are drawn."""
_SUBSET_STREAM = 42

Features = Callable[[StoredExamples], Any]


@dataclass(frozen=True)
class Rule:
    """A way to predict, and its variants."""

    name: str
    features: Features
    """Of a split, one row or entry for each example."""
    variants: Callable[[], Sequence[Any]]
    """Estimators in scikit-learn's manner, not fitted; the first of the best on validation is taken."""
    most_tokens: int | None = None
    """Fitted on no more training tokens than these; None: on all."""

    def accuracies(
        self, train: StoredExamples, validation: StoredExamples, compared: Mapping[str, StoredExamples]
    ) -> dict[str, float]:
        """Fit, choose, and score on other splits, by their keys."""
        if self.most_tokens is not None:
            train = _at_most(train, self.most_tokens)
        inputs = self.features(train)
        with warnings.catch_warnings():
            # A regression that stops early is a rule like any other: validation chooses.
            warnings.filterwarnings("ignore", "lbfgs failed to converge")
            fitted = [variant.fit(inputs, train.labels) for variant in self.variants()]
        if len(fitted) > 1:
            x = self.features(validation)
            right = [np.mean(one.predict(x) == validation.labels) for one in fitted]
            fitted = [fitted[int(np.argmax(right))]]
        (chosen,) = fitted
        return {
            key: float(np.mean(chosen.predict(self.features(split)) == split.labels)) for key, split in compared.items()
        }


def rules_of(task: str) -> Sequence[Rule]:
    """The rules of a task, simplest first."""
    return _RULES[task]


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


@dataclass(frozen=True)
class _List:
    """The outermost list of an expression."""

    operator: int | None
    """By its place in OPERATORS; None where there is none: of a digit alone, or of brackets that were cut after."""
    digits: tuple[int, ...]
    """That it holds directly."""
    nested: tuple[int, ...]
    """The operators of the lists that it holds directly."""

    @property
    def result(self) -> int | None:
        """Of the direct digits."""
        if not self.digits:
            return None
        return self.digits[0] if self.operator is None else apply(self.operator, self.digits)


def _outermost(tokens: Iterable[int]) -> _List:
    """Of a whole expression or of its beginning, with brackets that group or without."""
    digits, operators, depth = list[int](), list[int](), 0
    for token in tokens:
        if token < FIRST_OPERATOR:
            digits += [token] if depth == 1 or not operators else []
        elif token < END_OF_LIST:
            operators += [token - FIRST_OPERATOR] if depth < 2 else []
            depth += 1
        elif token == END_OF_LIST:
            depth -= 1
    return _List(operators[0] if operators else None, tuple(digits), tuple(operators[1:]))


def _keys(make: Callable[[_List], tuple[Hashable, ...]]) -> Features:
    return lambda split: [make(_outermost(tokens.tolist())) for tokens in split.sequences()]


def _texts(split: StoredExamples, sequence: int = 0) -> list[str]:
    """A character each byte."""
    return [tokens.tobytes().decode("latin-1") for tokens in split.sequences(sequence)]


def _grams(shortest: int, longest: int) -> Features:
    """Weights of byte n-grams: 1 + the logarithm of their counts, by hashes, of length 1."""

    def of_texts(texts: list[str]) -> Any:
        from sklearn.feature_extraction.text import HashingVectorizer
        from sklearn.preprocessing import normalize

        hashing = HashingVectorizer(
            analyzer="char", ngram_range=(shortest, longest), lowercase=False, norm=None, alternate_sign=False,
            n_features=1 << 20,
        )  # fmt: skip
        x_nF = hashing.transform(texts)
        x_nF.data = 1 + np.log(x_nF.data)
        return normalize(x_nF, copy=False)

    def features(split: StoredExamples) -> Any:
        from scipy.sparse import hstack

        sides = [of_texts(_texts(split, sequence)) for sequence in range(split.num_sequences)]
        if len(sides) == 1:
            return sides[0]
        first, second = sides
        return hstack([first, second, abs(first - second)], format="csr")

    return features


def _pixels(split: StoredExamples) -> NDArray[np.float32]:
    """(n, P), from 0 to 1; of a picture that was cut its beginning."""
    rows_nP = np.zeros((len(split), split.length), dtype=np.float32)
    for row_P, tokens in zip(rows_nP, split.sequences(), strict=True):
        row_P[: len(tokens)] = tokens
    return rows_nP[:, : int(split.lengths.max())] / np.float32(255)


def _distance_of_marks(split: StoredExamples) -> NDArray[np.float64]:
    """(n, 1): pixels between the two discs that a path's ends are marked with: the two brightest ones."""
    from scipy.signal import oaconvolve

    x_nP = _pixels(split)
    size = math.isqrt(x_nP.shape[1])
    pictures_nHW = x_nP[:, : size * size].reshape(-1, size, size)
    radius = styled(size).mark_radius if size in (32, 64, 128, 256) else 1.5
    reach = math.ceil(radius)
    steps = np.arange(-reach, reach + 1)
    disc = (np.hypot(steps, steps[:, None]) <= radius).astype(np.float32)
    bright_nHW = oaconvolve(pictures_nHW, disc[None], mode="same", axes=(1, 2))
    y_H1, x_1W = np.arange(size)[:, None], np.arange(size)
    distances = np.zeros((len(bright_nHW), 1))
    for number, bright_HW in enumerate(bright_nHW):
        first = np.unravel_index(bright_HW.argmax(), bright_HW.shape)
        elsewhere = np.hypot(y_H1 - first[0], x_1W - first[1]) > 2 * radius
        second = np.unravel_index(np.where(elsewhere, bright_HW, -1).argmax(), bright_HW.shape)
        distances[number] = math.dist(first, second)
    return distances


def _linear(*strengths: float) -> Callable[[], Sequence[Any]]:
    """Logistic regressions of these inverse penalties."""

    def variants() -> Sequence[Any]:
        from sklearn.linear_model import LogisticRegression

        return [LogisticRegression(C=strength, max_iter=300, tol=1e-3) for strength in strengths]

    return variants


def _nearest_mean() -> Sequence[Any]:
    from sklearn.neighbors import NearestCentroid

    return [NearestCentroid()]


def _neighbours() -> Sequence[Any]:
    from sklearn.neighbors import KNeighborsClassifier

    return [KNeighborsClassifier(count) for count in (1, 3, 5, 10, 20, 50)]


def _trees() -> Sequence[Any]:
    from sklearn.tree import DecisionTreeClassifier

    return [DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=0) for leaves in (2, 4, 8, 16)]


def _at_most(split: StoredExamples, most: int) -> StoredExamples:
    """Examples with about so many tokens in all, drawn by a fixed seed."""
    share = most / int(split.tokens.sum())
    if share >= 1:
        return split
    count = max(1, int(share * len(split)))
    return split.take(np.sort(permute(np.arange(count), len(split), 0, _SUBSET_STREAM)))


_RULES: dict[str, Sequence[Rule]] = {
    "listops": (
        Rule("outermost operator", _keys(lambda found: (found.operator,)), lambda: [Table()]),
        Rule(
            "operator and direct digits",
            _keys(lambda found: (found.operator, found.result)),
            lambda: [Table()],
        ),
        Rule(
            "operator, direct digits and next operators",
            _keys(lambda found: (found.operator, found.result, tuple(sorted(found.nested)))),
            lambda: [Table()],
        ),
    ),
    "text": (
        Rule("bag of bytes", _grams(1, 1), _linear(1, 10, 100, 1000), _MOST_BYTES),
        Rule("byte n-grams", _grams(2, 5), _linear(1, 10, 100), _MOST_BYTES),
    ),
    "retrieval": (
        Rule("bag of bytes", _grams(1, 1), _linear(1, 10, 100, 1000), _MOST_BYTES),
        Rule("byte n-grams", _grams(2, 5), _linear(1, 10, 100), _MOST_BYTES),
    ),
    "image": (
        Rule("nearest mean", _pixels, _nearest_mean),
        Rule("linear on pixels", _pixels, _linear(0.001, 0.01, 0.1, 1)),
        Rule("nearest neighbours", _pixels, _neighbours),
    ),
    "pathfinder": (
        Rule("linear on pixels", _pixels, _linear(0.0001, 0.001, 0.01)),
        Rule("distance of the marks", _distance_of_marks, _trees),
    ),
}
