"""How well chances of a 1 order clients and fit shares, with intervals over clients.

Shapes: n clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BINS = 10
_DRAWS = 1000
_STREAM = 42


def auroc(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """The chance that a client with label 1 is put before one with 0, ties counted by half; 0.5 of one class alone.

    Args:
        weights_n: how often each client counts; None: once.
    """
    weights = np.ones(len(labels_n)) if weights_n is None else weights_n
    values, groups = np.unique(chances_n, return_inverse=True)
    ones, zeros = (np.bincount(groups, weights * (labels_n == label), len(values)) for label in (1, 0))
    total = ones.sum() * zeros.sum()
    return float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / total) if total else 0.5


def gini(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """2 AUROC − 1; arguments as of auroc."""
    return 2 * auroc(chances_n, labels_n, weights_n) - 1


def average_precision(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """The mean of precisions at each new recall; clients of equal chances are one step. 0 without a 1."""
    weights = np.ones(len(labels_n)) if weights_n is None else weights_n
    values, groups = np.unique(-chances_n, return_inverse=True)
    found = np.cumsum(np.bincount(groups, weights * labels_n, len(values)))
    named = np.cumsum(np.bincount(groups, weights, len(values)))
    if not found[-1]:
        return 0.0
    return float((np.diff(found, prepend=0) * found / np.maximum(named, 1e-12)).sum() / found[-1])


def log_loss(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """In nats."""
    right = np.where(labels_n == 1, chances_n, 1 - chances_n)
    return float(np.average(-np.log(np.maximum(right, 1e-12)), weights=weights_n))


def calibration_error(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """How far chances are from shares of 1, in the mean over clients, by bins of about equally many of them."""
    weights = np.ones(len(labels_n)) if weights_n is None else weights_n
    sums = np.bincount(bins_of(chances_n), weights * (chances_n - labels_n), BINS)
    return float(np.abs(sums).sum() / weights.sum())


def bins_of(chances_n: Floats) -> NDArray[np.int64]:
    """Which of BINS each client is in, by the rank of its chance; clients of equal chances are in the same one."""
    _, groups, counts = np.unique(chances_n, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts + 1) / 2
    bins: NDArray[np.int64] = (middles / len(chances_n) * BINS).astype(np.int64)[groups]
    return bins


METRICS = {
    "gini": gini,
    "auroc": auroc,
    "average_precision": average_precision,
    "log_loss": log_loss,
    "calibration_error": calibration_error,
}
"""By name, the main one first."""


def score(chances_n: Floats, labels_n: NDArray[np.int64]) -> dict[str, float]:
    """All of them."""
    return {name: metric(chances_n, labels_n) for name, metric in METRICS.items()}


def interval(statistic: Callable[[Floats], float], clients: int, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a statistic over clients, by resampling them.

    Args:
        statistic: of how often each client counts, (n,).
    """
    random = np.random.default_rng([_STREAM, seed])
    places = (random.integers(0, clients, clients) for _ in range(_DRAWS))
    drawn = [statistic(np.bincount(each, minlength=clients).astype(np.float64)) for each in places]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def intervals(chances_n: Floats, labels_n: NDArray[np.int64]) -> dict[str, tuple[float, float]]:
    """Of all metrics but the calibration error, which resampling biases upwards."""
    return {
        name: interval(partial(metric, chances_n, labels_n), len(labels_n))
        for name, metric in METRICS.items()
        if name != "calibration_error"
    }
