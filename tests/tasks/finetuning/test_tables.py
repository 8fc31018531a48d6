"""A command's table, and the sentence below it."""

from dataclasses import replace
from pathlib import Path

import pytest
from records import a_run

from nystromformer.runs.figures import Spread
from nystromformer.runs.record import Run, ranked
from nystromformer.tasks.finetuning.tables import table


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
    text = " ".join(table([scored(value)], GUESSERS, others).split())
    assert text.endswith(expected)
    if frozen is not None:  # whichever command comes last
        assert " ".join(table(others, GUESSERS, [scored(value)]).split()).endswith(expected)


def test_without_anything_to_compare_there_is_no_such_line() -> None:
    assert "is best" not in table([scored(0.9)])
    elsewhere = replace(scored(0.8, freeze=True), tested=None, folder=Path("other"))
    assert "is best" not in table([scored(0.9)], {}, [elsewhere])
    # Only the validation data have labels; guessing is best there.
    text = " ".join(table([a_run(values=(0.4,))], {"majority class": {"accuracy": Spread(0.5, None)}}).split())
    assert "On the 872 validation rows, which chose the epoch, majority class is best" in text
    assert text.endswith("above the fine-tuned encoder: guessing is as good.")
