"""Metrics of chances."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from nystromformer.tasks.transactions.metrics import gini, interval, score

CLIENTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=2, max_size=60)


@given(CLIENTS)
def test_the_gini_is_scikit_learns_ties_and_weights_included(clients: list[tuple[int, int]]) -> None:
    chances, labels = np.array([(c + 1) / 10 for c, _ in clients]), np.array([label for _, label in clients])
    if labels.min() == labels.max():
        assert gini(chances, labels) == 0
        return
    assert score(chances, labels)["auroc"] == pytest.approx(roc_auc_score(labels, chances))
    counts = np.arange(len(labels)) % 3
    repeated = gini(np.repeat(chances, counts), np.repeat(labels, counts))
    assert gini(chances, labels, counts.astype(float)) == pytest.approx(repeated)


def test_an_interval_holds_what_was_measured_and_narrows_with_clients() -> None:
    random = np.random.default_rng(0)
    widths = []
    for clients in (200, 3200):
        chances = random.random(clients)
        labels = (random.random(clients) < chances).astype(np.int64)
        low, high = interval(partial(gini, chances, labels), clients)
        assert low < gini(chances, labels) < high
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.3)
