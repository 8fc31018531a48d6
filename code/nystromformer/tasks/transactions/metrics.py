"""How well chances of a 1 order clients and fit shares, with intervals over clients.

Shapes: n clients. `weights_n` is how often each client counts; None: once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS = 1000
_STREAM = 42


def gini(chances_n: Floats, labels_n: NDArray[np.int64], weights_n: Floats | None = None) -> float:
    """2 AUROC − 1, where the AUROC is the chance that a client with label 1 is put before one with 0, ties counted by
    half; of one class alone 0.
    """
    weights = np.ones(len(labels_n)) if weights_n is None else weights_n
    values, groups = np.unique(chances_n, return_inverse=True)
    ones, zeros = (np.bincount(groups, weights * (labels_n == label), len(values)) for label in (1, 0))
    total = ones.sum() * zeros.sum()
    return 2 * float((ones * (np.cumsum(zeros) - zeros / 2)).sum() / total) - 1 if total else 0.0


def score(chances_n: Floats, labels_n: NDArray[np.int64]) -> dict[str, float]:
    """All metrics by name, the main one first."""
    from sklearn.metrics import average_precision_score, log_loss  # takes seconds

    main = gini(chances_n, labels_n)
    return {
        "gini": main,
        "auroc": (main + 1) / 2,
        "average_precision": float(average_precision_score(labels_n, chances_n)),
        "log_loss": float(log_loss(labels_n, chances_n, labels=[0, 1])),
    }


def interval(statistic: Callable[[Floats], float], clients: int, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of a statistic of how often each client counts, by resampling them."""
    random = np.random.default_rng([_STREAM, seed])
    places = (random.integers(0, clients, clients) for _ in range(_DRAWS))
    drawn = [statistic(np.bincount(each, minlength=clients).astype(np.float64)) for each in places]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)
