"""What gradient boosting makes of aggregates of a client's events: the bar for everything that reads them in order.

Shapes: n clients, A aggregates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.runs.figures import Spread
from nystromformer.tasks.finetuning.trainable import Metrics
from nystromformer.tasks.transactions.examples import ClientExamples

_RECENT = (10, 50)
"""Newest events that have aggregates of their own."""
_LEAST = 20
"""Clients of the rarer label, from which on boosting stops early."""
_VALUES = 16
"""Ids of a category whose shares are counted: the most frequent ones."""


def boosted(
    train: ClientExamples, compared: Mapping[str, ClientExamples], metrics: Metrics, seeds: Sequence[int]
) -> dict[str, Spread]:
    """Metrics of `boosted_chances`.

    Args:
        compared: the splits to score it on, by the ending of their metrics' names.
    """
    figures = dict[str, list[float]]()
    for ending, of_seeds in boosted_chances(train, compared, seeds).items():
        labels = torch.from_numpy(compared[ending].labels)
        for chances_nC in of_seeds:
            values = metrics(torch.from_numpy(np.log(np.maximum(chances_nC, 1e-12))).float(), labels)
            for name, value in values.items():
                figures.setdefault(name + ending, []).append(value)
    return {name: Spread.of(values) for name, values in figures.items()}


def boosted_chances(
    train: ClientExamples, compared: Mapping[str, ClientExamples], seeds: Sequence[int]
) -> dict[str, list[NDArray[np.float64]]]:
    """Probabilities of both labels, (n, 2), of each split by each seed, from scikit-learn's
    HistGradientBoostingClassifier, which stops early by a tenth of the training clients.

    Args:
        seeds: each draws its own tenth.
    """
    # Imported here: scikit-learn is an extra.
    from sklearn.ensemble import HistGradientBoostingClassifier

    inputs = {name: aggregates(examples) for name, examples in compared.items()}
    learned, found = aggregates(train), {name: list[NDArray[np.float64]]() for name in compared}
    # Early stopping needs some of each class among the tenth that is held out.
    stops = int(np.bincount(train.labels, minlength=2).min()) >= _LEAST
    settings = {"learning_rate": 0.05, "max_iter": 500 if stops else 100, "early_stopping": stops}
    for seed in seeds:
        model = HistGradientBoostingClassifier(**settings, random_state=seed).fit(learned, train.labels)
        for name, rows in inputs.items():
            found[name].append(model.predict_proba(rows))
    return found


def aggregates(examples: ClientExamples) -> NDArray[np.float32]:
    """Of the same events as the model sees, (n, A): how many they are and how long they took; of each number mean,
    deviation, least, greatest, sum and the newest one; of each category the shares of its most frequent values, how
    many different ones there are, and the newest one; mean numbers and shares of the newest events, too.
    """
    stored = examples.stored
    return np.stack([_of_client(stored.numbers, stored.categories, examples, row) for row in range(len(examples))])


def _of_client(
    numbers: NDArray[np.float32], categories: NDArray[np.int32], examples: ClientExamples, row: int
) -> NDArray[np.float32]:
    places, manifest = examples.places(row), examples.stored.manifest
    values_NF, codes_NC = np.asarray(numbers[places]), np.asarray(categories[places])
    ids_NC = (
        np.stack([each.ids_of(codes_NC[:, column]) for column, each in enumerate(manifest.categories)], 1)
        if (manifest.categories)
        else np.zeros((len(values_NF), 0), np.int64)
    )
    found = [np.array([len(values_NF)], dtype=np.float64)]
    known_NF = np.ma.masked_invalid(values_NF.astype(np.float64))
    for part in (known_NF.mean(0), known_NF.std(0), known_NF.min(0), known_NF.max(0), known_NF.sum(0)):
        found.append(np.ma.filled(part, np.nan))
    found.append(values_NF[-1].astype(np.float64))
    found += [np.ma.filled(known_NF[-recent:].mean(0), np.nan) for recent in _RECENT]
    for events in (ids_NC, *(ids_NC[-recent:] for recent in _RECENT)):
        for column, each in enumerate(manifest.categories):
            width = min(each.size, _VALUES)
            counts = np.bincount(np.minimum(events[:, column], width), minlength=width + 1)[:width]
            found.append(counts / len(events))
    found.append(np.array([len(np.unique(ids_NC[:, column])) for column in range(ids_NC.shape[1])], dtype=np.float64))
    found.append(ids_NC[-1].astype(np.float64))
    return np.concatenate(found).astype(np.float32)
