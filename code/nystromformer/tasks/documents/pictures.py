"""Pictures of predictions: which classes are taken for which, and whether chances are shares.

Shapes: n rows, C classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nystromformer.files.writing import write_figure
from nystromformer.tables import printable

BINS = 10
_DPI = 120
_MOST_NAMED = 40
"""Classes whose names, and whose figures, can be read in a picture."""


def confusion_of(classes: int, predicted_n: Tensor, labels_n: Tensor) -> NDArray[np.int64]:
    """How many rows of each class, down, got each class, across: (C, C)."""
    # imported here: it takes seconds
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    counts_CC: NDArray[np.int64] = multiclass_confusion_matrix(predicted_n, labels_n, num_classes=classes).numpy()
    return counts_CC


def draw_confusion(path: Path, names: Sequence[str], counts_CC: NDArray[np.int64]) -> None:
    """A confusion matrix: for each right class, which share of its rows got which one, and how many they are."""
    shares_CC = counts_CC / np.maximum(counts_CC.sum(1, keepdims=True), 1)
    side = min(max(3.0 + 0.35 * len(names), 4.0), 14.0)
    figure, axes = _axes(side, side)
    axes.imshow(shares_CC, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted")
    axes.set_ylabel("right")
    if len(names) <= _MOST_NAMED:
        shown = [printable(name)[:24] for name in names]
        slant = 45 if max(map(len, shown)) > 3 else 0
        # A name is text, also where it has dollar signs.
        axes.set_xticks(range(len(names)), shown, rotation=slant, ha="center", parse_math=False)
        axes.set_yticks(range(len(names)), shown, parse_math=False)
        for row, column in np.argwhere(counts_CC > 0):
            dark = shares_CC[row, column] > 0.5
            axes.text(column, row, f"{counts_CC[row, column]:,}", **_CENTRED, color="white" if dark else "black")
    with warnings.catch_warnings():
        # Of scripts that the font has not; the names stand in the table of the same counts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        write_figure(path, figure, _DPI)


def draw_calibration(path: Path, chances_n: NDArray[np.float64], right_n: NDArray[np.bool_], error: float) -> None:
    """A calibration curve: of the predictions within a range of chances, which share is right.

    Args:
        error: the mean distance of both, for the heading.
    """
    bins = np.minimum((chances_n * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(bins, minlength=BINS)
    filled = np.flatnonzero(counts)
    means, shares = (np.bincount(bins, each, BINS)[filled] / counts[filled] for each in (chances_n, right_n))
    figure, axes = _axes(5, 5)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axes.plot(means, shares, marker="o")
    for mean, share, count in zip(means, shares, counts[filled], strict=True):
        axes.annotate(f"{count:,}", (mean, share), textcoords="offset points", xytext=(4, -10), fontsize=7)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="chance", ylabel="share that is right")
    axes.set_title(f"expected calibration error {100 * error:.1f} %")
    write_figure(path, figure, _DPI)


def draw_values(path: Path, predicted_n: Tensor, labels_n: Tensor) -> None:
    """Predicted values over the right ones."""
    figure, axes = _axes(5, 5)
    axes.axline((float(labels_n.mean()), float(labels_n.mean())), slope=1, color="grey", linewidth=1, linestyle="--")
    axes.scatter(labels_n.numpy(), predicted_n.numpy(), s=8, alpha=0.5)
    axes.set(xlabel="right", ylabel="predicted")
    write_figure(path, figure, _DPI)


_CENTRED = {"ha": "center", "va": "center", "fontsize": 7}


def _axes(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
