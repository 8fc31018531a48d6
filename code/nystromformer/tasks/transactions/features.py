"""What columns are for the model, as the training clients have them: vocabularies and scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nystromformer.tasks.transactions.store import DTYPES, FIRST, UNKNOWN, Category, Form, Number, file_of, shaped

MOST_KNOWN = 10_000
"""Values of a category that have an embedding of their own."""
_EVENTS = 1 << 20
"""At a time."""


def fit_categories(
    folder: Path, ends: NDArray[np.int64], trained: NDArray[np.bool_], values_of: Mapping[str, list[str]]
) -> list[Category]:
    """The values' ids: the training clients' most frequent ones first; the others are unknown.

    Args:
        folder: with the file of categories.
        ends: of each client's events.
        trained: which clients are those to learn from.
        values_of: each column, by their numbers.
    """
    counts = [np.zeros(len(each), dtype=np.int64) for each in values_of.values()]
    for events in _pieces(folder, "categories", ends, trained, len(counts)):
        for column, count in enumerate(counts):
            codes = events[:, column]
            count += np.bincount(codes[codes >= 0], minlength=len(count))
    categories = []
    for (name, each), count in zip(values_of.items(), counts, strict=True):
        # Equally frequent ones by their names: the order in which they were met is other clients' matter, too.
        order = np.array(sorted(range(len(each)), key=lambda number: (-count[number], each[number])), dtype=np.int64)
        order = order[:MOST_KNOWN]
        ids = np.full(len(each), UNKNOWN, dtype=np.int64)
        known = order[count[order] > 0]
        ids[known] = FIRST + np.arange(len(known))
        categories.append(Category(name, each, ids.tolist()))
    return categories


def fit_numbers(
    folder: Path, ends: NDArray[np.int64], trained: NDArray[np.bool_], columns: Sequence[tuple[str, Form]]
) -> list[Number]:
    """Scales of numerical columns.

    Args: as of fit_categories.
    """
    sums = np.zeros((3, len(columns)))
    for events in _pieces(folder, "numbers", ends, trained, len(columns)):
        for column, (_, form) in enumerate(columns):
            values = shaped(events[:, column], form)
            values = values[~np.isnan(values)]
            sums[:, column] += len(values), values.sum(), (values**2).sum()
    numbers = []
    for (name, form), (count, total, squares) in zip(columns, sums.T, strict=True):
        mean = total / count if count else 0.0
        deviation = float(np.sqrt(max(squares / count - mean**2, 0.0))) if count else 0.0
        numbers.append(Number(name, form, float(mean), deviation if deviation > 1e-9 else 1.0))
    return numbers


def _pieces(
    folder: Path, kind: str, ends: NDArray[np.int64], trained: NDArray[np.bool_], width: int
) -> Iterator[NDArray[np.float32]]:
    """Events of the training clients, some at a time."""
    if not width or not len(ends):
        return
    everything = np.memmap(file_of(folder, kind), dtype=DTYPES[kind], mode="r").reshape(-1, width)
    lengths = np.diff(ends, prepend=0)
    first = 0
    while first < len(ends):
        start = int(ends[first] - lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, start + _EVENTS, side="right")))
        chosen = np.repeat(trained[first:last], lengths[first:last])
        yield np.asarray(everything[start : int(ends[last - 1])])[chosen]
        first = last
