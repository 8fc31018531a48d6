"""What is noise, and the smallest difference that a table could have shown."""

import math

import numpy as np
import pytest

from nystromformer.runs.figures import Spread, power_note, rows_behind, smallest_difference, standard_error

FIGURES = [(Spread(0.80, 0.01), 3), (Spread(0.82, 0.02), 3), (Spread(0.81, 0.015), 3)]


def test_a_difference_of_that_size_is_found_in_four_of_five_repetitions() -> None:
    """Two models of which one is better by just that: each repetition draws examples and seeds anew."""
    generator = np.random.default_rng(0)
    seeds, rows, deviation, trials = 3, 500, 0.02, 20_000
    # A long table, so that the seeds' deviation is known well.
    figures = [(Spread(0.8, deviation), seeds)] * 200
    found = smallest_difference("accuracy", figures, rows)
    assert found is not None

    def means(truth: float) -> np.ndarray:
        of_rows = generator.binomial(rows, truth, trials) / rows
        return of_rows + generator.normal(0, deviation, (seeds, trials)).mean(0)

    error = math.sqrt(2 * (deviation**2 / seeds + 0.8 * 0.2 / rows))
    differences = means(0.8 + found.value / 2) - means(0.8 - found.value / 2)
    assert np.mean(abs(differences) > 1.96 * error) == pytest.approx(0.8, abs=0.02)
    assert np.mean(abs(means(0.8) - means(0.8)) > 1.96 * error) == pytest.approx(0.05, abs=0.01)


def test_more_seeds_and_more_rows_show_less_and_a_spread_that_few_seeds_tell_shows_more() -> None:
    def value(figures: list[tuple[Spread, int]], rows: int) -> float:
        found = smallest_difference("accuracy", figures, rows)
        assert found is not None
        return found.value

    usual = value(FIGURES, 1000)
    assert value(FIGURES, 4000) < usual
    assert value([(spread, 12) for spread, _ in FIGURES], 1000) < usual
    assert value(FIGURES[:2], 10**9) > value([(FIGURES[0][0], 3)] * 50, 10**9)


def test_of_one_seed_each_only_the_rows_are_counted_and_the_note_says_so() -> None:
    single = [(Spread(0.5, None), 1), (Spread(0.5, None), 1)]
    found = smallest_difference("accuracy", single, 400)
    assert found is not None
    assert found.value == pytest.approx((1.95996 + 0.84162) * math.sqrt(2 * 0.25 / 400), rel=1e-4)
    note = power_note({"Text": found, "Image": smallest_difference("accuracy", FIGURES, 1000)})
    assert "Text at least 9.9 points (1 seed, 400 examples); Image " in note
    assert note.endswith("of one seed each, so that the spread of seeds is not counted.")


def test_where_there_is_nothing_to_say() -> None:
    for metric, figures, rows in (("accuracy", FIGURES[:1], 100), ("accuracy", FIGURES, 0), ("rmse", FIGURES, 100)):
        assert smallest_difference(metric, figures, rows) is None
    assert power_note({"": None}) == ""


@pytest.mark.parametrize(("share", "metric"), [(0.05, "accuracy"), (0.8, "accuracy_mismatched")])
def test_the_error_of_a_share_is_that_of_drawn_rows(metric: str, share: float) -> None:
    random = np.random.default_rng(0)
    drawn = random.binomial(400, share, 20000) / 400
    assert standard_error(metric, share, 400) == pytest.approx(drawn.std(), rel=0.03)


@pytest.mark.parametrize(("correlation", "metric"), [(0.0, "pearson"), (0.9, "pearson_spearman")])
def test_the_error_of_a_correlation_is_that_of_drawn_rows(metric: str, correlation: float) -> None:
    random = np.random.default_rng(0)
    x, noise = random.normal(size=(2, 3000, 400))
    y = correlation * x + math.sqrt(1 - correlation**2) * noise
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(x, y, strict=True)]
    assert standard_error(metric, correlation, 400) == pytest.approx(np.std(correlations), rel=0.06)


def test_rows_behind_a_metric() -> None:
    rows = {"train": 1, "validation": 2, "validation_mismatched": 3}
    assert [rows_behind(name, rows) for name in ("accuracy", "accuracy_mismatched")] == [2, 3]
    assert rows_behind("accuracy_mismatched", {"train": 1, "validation": 2}) == 2
