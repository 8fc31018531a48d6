"""Metrics of chances, by scikit-learn's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from nystromformer.tasks.transactions.metrics import (
    auroc,
    average_precision,
    gini,
    intervals,
    log_loss,
)

CLIENTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=2, max_size=60)


@given(CLIENTS)
def test_as_scikit_learn_has_them_ties_included(clients: list[tuple[int, int]]) -> None:
    chances, labels = np.array([(c + 1) / 10 for c, _ in clients]), np.array([label for _, label in clients])
    if labels.min() == labels.max():
        assert auroc(chances, labels) == 0.5
        return
    assert auroc(chances, labels) == pytest.approx(roc_auc_score(labels, chances))
    assert average_precision(chances, labels) == pytest.approx(average_precision_score(labels, chances))
    assert log_loss(chances, labels) == pytest.approx(sklearn_log_loss(labels, chances))
    counts = np.arange(len(labels)) % 3
    for metric in (auroc, average_precision, log_loss):
        if counts[labels == 1].sum():
            repeated = metric(np.repeat(chances, counts), np.repeat(labels, counts))
            assert metric(chances, labels, counts.astype(float)) == pytest.approx(repeated)


def test_an_interval_holds_what_was_measured_and_narrows_with_clients() -> None:
    random = np.random.default_rng(0)
    widths = []
    for clients in (200, 3200):
        chances = random.random(clients)
        labels = (random.random(clients) < chances).astype(np.int64)
        low, high = intervals(chances, labels)["gini"]
        assert low < gini(chances, labels) < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.3)
