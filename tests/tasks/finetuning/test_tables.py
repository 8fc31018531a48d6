"""A command's table in terminals of all widths, and the sentence below it."""

from dataclasses import replace
from pathlib import Path

import pytest
from records import a_run

from nystromformer.runs.figures import Spread
from nystromformer.runs.record import EpochMetrics, Run, ranked
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
    for name in (*METRICS, *BASELINES):
        assert name.replace(" ", "") in squeezed


def test_a_combination_with_all_its_seeds_goes_before_a_lucky_survivor() -> None:
    survivor = [a_run(values=(0.99,), learning_rate=5e-5, seed=1)]
    whole = [
        a_run(values=(rate * 1e4 + seed / 10,), learning_rate=rate, seed=seed)
        for rate in (2e-5, 3e-5)
        for seed in range(3)
    ]
    best = [(run.settings.learning_rate, run.settings.seed) for run in ranked([*survivor, *whole])[0]]
    assert sorted(best) == [(3e-5, 0), (3e-5, 1), (3e-5, 2)]
    text = table([*survivor, *whole])
    assert [line.split()[1] for line in text.splitlines() if line.split()[0] == "32"] == ["3e-05", "2e-05", "5e-05"]
    assert "1 combination has fewer finished seeds than the first one" in text
    assert "fewer finished seeds" not in table(whole)


def scored(value: float, freeze: bool = False) -> Run:
    return a_run(test_metrics={"accuracy": value}, test_rows={"test": 1000}, freeze=freeze)


GUESSERS = {name: {"accuracy_test": Spread(value, None)} for name, value in (("majority class", 0.5), ("tf-idf", 0.8))}


@pytest.mark.parametrize(
    ("value", "frozen", "expected"),
    [
        (0.9, None, "On the 1,000 test rows the fine-tuned encoder is best: accuracy 90.0, +10.0 points (95 % interval "
                    "+6.9 to +13.1) above tf-idf."),
        (0.81, None, "the fine-tuned encoder is best: accuracy 81.0, +1.0 points (95 % interval -2.5 to +4.5; these "
                     "rows cannot tell the two apart) above tf-idf."),
        (0.7, None, "tf-idf is best: accuracy 80.0, +10.0 points (95 % interval +6.2 to +13.8) above the fine-tuned "
                    "encoder: use tf-idf."),
        (0.85, 0.9, "the frozen encoder is best: accuracy 90.0, +5.0 points (95 % interval +2.1 to +7.9) above the "
                    "fine-tuned encoder: use --freeze."),
        (0.9, 0.85, "the fine-tuned encoder is best: accuracy 90.0, +5.0 points (95 % interval +2.1 to +7.9) above the "
                    "frozen encoder."),
    ],
)  # fmt: skip
def test_the_last_line_says_what_to_use(value: float, frozen: float | None, expected: str) -> None:
    others = [] if frozen is None else [scored(frozen, freeze=True)]
    text = " ".join(table([scored(value)], GUESSERS, None, others).split())
    assert text.endswith(expected)
    if frozen is not None:  # whichever command comes last
        assert " ".join(table(others, GUESSERS, None, [scored(value)]).split()).endswith(expected)


def test_without_anything_to_compare_there_is_no_such_line() -> None:
    assert "is best" not in table([scored(0.9)])
    elsewhere = replace(scored(0.8, freeze=True), tested=None, folder=Path("other"))
    assert "is best" not in table([scored(0.9)], {}, None, [elsewhere])
    # Only the validation data have labels; guessing is best there.
    text = " ".join(table([a_run(values=(0.4,))], {"majority class": {"accuracy": Spread(0.5, None)}}).split())
    assert "On the 872 validation rows, which chose the epoch, majority class is best" in text
    assert text.endswith("above the fine-tuned encoder: guessing is as good.")
