"""A command's table in terminals of all widths."""

import pytest
from records import a_run

from nystromformer.runs.figures import Spread
from nystromformer.runs.record import EpochMetrics, Run
from nystromformer.tables import longest
from nystromformer.tasks.finetuning.tables import table

METRICS = ["pearson_spearman", "pearson", "spearman"]
BASELINES = {"mean value": {"pearson": Spread(0.0, None)}, "tf-idf": {METRICS[0]: Spread(0.25, 0.01)}}


def finished(rate: float, seed: int) -> Run:
    """A run of STS-B, whose metrics have the longest names."""
    values = {name: 1000 * rate + seed / 10 + place / 100 for place, name in enumerate(METRICS)}
    metrics = [EpochMetrics(0, {"loss": 1.0, **values})]
    rows = {"train": 5749, "validation": 1500}
    return a_run(main_metric=METRICS[0], validated=metrics, rows=rows, learning_rate=rate, seed=seed)


RESULTS = [finished(rate, seed) for rate in (1e-5, 3e-4) for seed in (0, 1)]


@pytest.mark.parametrize("width", [20, 50, 78, 80, 100, 139, 140, 400])
def test_it_fits_and_says_the_same(width: int) -> None:
    whole, text = table(RESULTS, BASELINES), table(RESULTS, BASELINES, width)
    assert longest(text.splitlines()) <= width
    assert (text == whole) == (width >= longest(whole.splitlines()))
    squeezed = "".join(text.split())
    figures = [word for word in whole.split() if "." in word]
    assert all(squeezed.count(figure) >= whole.count(figure) for figure in figures)
    for name in (*METRICS, *BASELINES, "within noise of a baseline"):
        assert name.replace(" ", "") in squeezed
