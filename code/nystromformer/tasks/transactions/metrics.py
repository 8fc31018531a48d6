"""How well chances of a 1 order clients and fit shares, with intervals over clients.

Shapes: n clients. `weights_n` is how often each client counts; None: once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS = 1000
_STREAM = 42


def auroc(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """The chance that a client with label 1 is put before one with 0, ties counted by half; 0.5 of one class alone."""
    ones, zeros = _weights_by_chance(chances_n, labels_n, weights_n)
    total = ones.sum() * zeros.sum()
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / total) if total else 0.5


def gini(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """2 AUROC − 1."""
    return 2 * auroc(chances_n, labels_n, weights_n) - 1


def average_precision(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """The mean of precisions at each new recall; clients of equal chances are one step. 0 without a 1."""
    ones, zeros = _weights_by_chance(-chances_n, labels_n, weights_n)
    found, named = np.cumsum(ones), np.cumsum(ones + zeros)
    return float((ones * found / np.maximum(named, 1e-12)).sum() / found[-1]) if found[-1] else 0.0


def log_loss(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """In nats."""
    right = np.where(labels_n == 1, chances_n, 1 - chances_n)
    return float(np.average(-np.log(np.maximum(right, 1e-12)), weights=weights_n))


def _weights_by_chance(
    chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None
) -> tuple[Floats, Floats]:
    """Of each different chance, ascending, how many clients have it and label 1, and label 0."""
    weights = np.ones(len(labels_n)) if weights_n is None else weights_n
    values, groups = np.unique(chances_n, return_inverse=True)
    ones, zeros = (np.bincount(groups, weights * (labels_n == label), len(values)) for label in (1, 0))
    return ones.astype(np.float64), zeros.astype(np.float64)


METRICS = {"gini": gini, "auroc": auroc, "average_precision": average_precision, "log_loss": log_loss}
"""By name, the main one first."""


def score(chances_n: Floats, labels_n: NDArray[np.int64]) -> dict[str, float]:
    """All of them."""
    return {name: metric(chances_n, labels_n) for name, metric in METRICS.items()}


def interval(statistic: Callable[[Floats], float], clients: int, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a statistic of how often each client counts, by resampling them."""
    random = np.random.default_rng([_STREAM, seed])
    places = (random.integers(0, clients, clients) for _ in range(_DRAWS))
    drawn = [statistic(np.bincount(each, minlength=clients).astype(np.float64)) for each in places]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def intervals(chances_n: Floats, labels_n: NDArray[np.int64]) -> dict[str, tuple[float, float]]:
    """Of all metrics."""
    return {name: interval(partial(metric, chances_n, labels_n), len(labels_n)) for name, metric in METRICS.items()}
