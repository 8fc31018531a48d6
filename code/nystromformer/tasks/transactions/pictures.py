"""A reliability diagram.

Shapes: n clients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nystromformer.files.writing import write_figure
from nystromformer.tasks.transactions.metrics import bins_of

_DPI = 120


def draw_reliability(path: Path, chances_n: NDArray[np.float64], labels_n: NDArray[np.int64], error: float) -> None:
    """Of tenths of the clients, by their chance of a 1, the mean chance and the share of 1, with its standard error.

    Args:
        error: the mean distance of both, for the heading.
    """
    from matplotlib.figure import Figure  # takes a second

    bins_n = bins_of(chances_n)
    parts = [np.flatnonzero(bins_n == number) for number in np.unique(bins_n)]
    means = np.array([chances_n[part].mean() for part in parts])
    shares = np.array([labels_n[part].mean() for part in parts])
    errors = [np.sqrt(share * (1 - share) / len(part)) for share, part in zip(shares, parts, strict=True)]
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.add_subplot()
    most = max(float(means.max()), float(shares.max())) * 1.1
    axes.plot([0, most], [0, most], color="grey", linewidth=1, linestyle="--")
    axes.errorbar(means, shares, errors, marker="o", capsize=3)
    axes.set(xlabel="mean predicted probability of label 1", ylabel="share of clients with label 1")
    axes.set_title(f"tenths of {len(labels_n):,} clients; calibration error {100 * error:.1f} %")
    write_figure(path, figure, _DPI)
