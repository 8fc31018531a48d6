"""IMDB's runs from reviews to predictions: the same from the folder and the archive; test is scored whole and once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning import finetune
from small import run_here

from nystromformer.report.table2 import write_table2
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import Run, ranked, read_run
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.tasks.imdb.task import Imdb

TEST_IDS = [f"{label}/{number}_{rating}" for label, rating in (("neg", 2), ("pos", 9)) for number in range(10)]


def run(experiment: Experiment, reviews: Path, **changes: Any) -> list[Run]:
    return finetune(experiment, Imdb(reviews, 0.25, 0), **changes).results


def rows(result: Run, name: str = "test") -> list[dict[str, str]]:
    lines = (Path(result.folder) / "predictions" / f"{name}.tsv").read_text().splitlines()
    header, *cells = [line.split("\t") for line in lines]
    return [dict(zip(header, row, strict=True)) for row in cells]


def share_right(predicted: list[dict[str, str]]) -> float:
    return sum(row["label"] == row["prediction"] for row in predicted) / len(predicted)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Names and sizes of the splits that are scored, one after the other."""
    names: list[tuple[str, int]] = []
    scores = Finetuning.scores

    def spy(self: Finetuning, examples: Examples) -> torch.Tensor:
        names.append((examples.name, len(examples)))
        return scores(self, examples)

    monkeypatch.setattr(Finetuning, "scores", spy)
    return names


def test_every_review_is_in_the_predictions(experiment: Experiment, reviews: Path) -> None:
    (result,) = run(experiment, reviews)
    predicted = rows(result)
    assert [row["id"] for row in predicted] == TEST_IDS
    assert all(row["id"].startswith(f"{row['label']}/") for row in predicted)
    assert result.test_metrics == {"accuracy": pytest.approx(share_right(predicted))}
    for row in predicted:
        chances = {label: float(row[f"p_{label}"]) for label in ("neg", "pos")}
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        assert row["prediction"] == max(chances, key=lambda label: chances[label])
    held_out = rows(result, "validation")
    assert len(held_out) == 6
    assert sum(row["label"] == "pos" for row in held_out) == 3
    assert result.best.metrics["accuracy"] == pytest.approx(share_right(held_out))
    assert " ".join(result.warnings).count("the official one has 25,000") == 2


def test_only_the_best_of_a_grid_sees_the_test_reviews(
    experiment: Experiment, reviews: Path, scored: list[tuple[str, int]]
) -> None:
    changes = {"lr": "1e-4,5e-3", "seed": "0,1"}
    results = run(experiment, reviews, **changes)
    assert len(results) == 4
    chosen = ranked(results)[0]
    assert {result.settings.seed for result in chosen} == {0, 1}
    groups = {result.settings.combination: [] for result in results}
    for result in results:
        groups[result.settings.combination].append(result.best.metrics["accuracy"])
    means = {combination: Spread.of(values).mean for combination, values in groups.items()}
    assert means[chosen[0].settings.combination] == max(means.values())
    test = ("IMDB test", len(TEST_IDS))
    assert scored.count(test) == 2, "whole, once for each seed of the best combination"
    first = scored.index(test)
    assert scored[:first] == [("IMDB validation", 6)] * (4 * 2), "after all trainings"
    predicted = {path.parent.parent.name for path in experiment.checkpoints.glob("imdb/*/predictions/test.tsv")}
    assert predicted == {Path(result.folder).name for result in chosen}
    for result in results:
        assert bool(result.test_metrics) == (Path(result.folder).name in predicted)
    scored.clear()
    again = run(experiment, reviews, **changes)
    assert [result.test_metrics for result in again] == [result.test_metrics for result in results]
    assert scored == [], "a second start only reads"


def test_baselines_are_scored_on_the_reviews_that_the_encoders_are_tested_on(
    experiment: Experiment, reviews: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--batch_size", 8, "--lr", 1e-3, "--epoch", 1, "--validation", 0.25, "--seed", "0,1", "--device", "cpu")
    where = ("--model", experiment.folder, "--imdb", reviews)
    assert run_here(monkeypatch, "code/run_imdb.py", *where, *flags, "--baselines") == 0
    result = next(filter(None, map(read_run, experiment.checkpoints.glob("imdb/cp-*"))))
    assert result.test_rows == {"test": 20}
    # Half of the test reviews are positive.
    assert result.baselines["majority class"]["accuracy_test"] == Spread(0.5, None)
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith("test accuracy of the best epoch's weights: "))
    assert f"; majority class 50.0; tf-idf {result.baselines['tf-idf']['accuracy_test']}" in line
    table = write_table2([experiment.folder], experiment.folder / "table2.md")
    assert "| model | IMDB |" in table
    assert "| majority class | 50.0 |" in table, "of the same data"
    assert f"| tf-idf | {result.baselines['tf-idf']['accuracy_test']} |" in table
