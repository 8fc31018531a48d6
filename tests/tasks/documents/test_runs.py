"""Runs on tables, from texts to predictions: the same as a task of its own, of every kind, cut by every rule."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from finetuning import finetune, imdb_as_table, made_rows, write_table
from small import run_here

from nystromformer.prediction.predictor import Predictor
from nystromformer.report.table2 import write_table2
from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.imdb.task import Imdb
from nystromformer.training.checkpoint import read_checkpoint

SCRIPT = "code/run_classify.py"
QUICK = ("--batch_size", 8, "--lr", 1e-3, "--epoch", 1, "--device", "cpu", "--validation", 0.25)


def documents(
    train: Path, test: Path | None = None, text: str = "body", label: str = "label", **asked: Any
) -> Documents:
    asked = {"validation": "0.25"} | asked
    return Documents(Question(str(train), text, label, None if test is None else str(test), **asked))


def results(experiment: Experiment, name: str) -> list[Run]:
    found = [read_run(path) for path in sorted((experiment.checkpoints / "documents" / name).glob("cp-*"))]
    return [result for result in found if result is not None]


def predicted(result: Run, name: str) -> list[dict[str, str]]:
    with (Path(result.folder) / "predictions" / name).open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_imdb_as_a_table_is_imdb(experiment: Experiment, reviews: Path, tmp_path: Path) -> None:
    """The same rows in the same order, the same ones held out: every metric to its last digit, and every weight."""
    train, test = (imdb_as_table(reviews, split, tmp_path / f"{split}.csv") for split in ("train", "test"))
    changes: dict[str, Any] = {"seed": "3", "train_rows": 15, "length": 32}
    theirs = finetune(experiment, Imdb(reviews, 0.25, 0), **changes).results
    ours = finetune(experiment, documents(train, test), **changes).results
    for their, our in zip(theirs, ours, strict=True):
        assert our.test_metrics["accuracy"] == their.test_metrics["accuracy"]
        for mine, his in zip(our.epochs, their.epochs, strict=True):
            assert {name: mine.metrics[name] for name in his.metrics} == his.metrics
        for name in ("cp-0001.model",):
            weights, others = (read_checkpoint(Path(run.folder) / name)["model"] for run in (our, their))
            assert all(torch.equal(weights[key], others[key]) for key in others)
        theirs_test = predicted(their, "test.tsv")
        chances = [(row["p_neg"], row["p_pos"]) for row in theirs_test]
        assert [(row["p_neg"], row["p_pos"]) for row in predicted(our, "test.tsv")] == chances
    assert [run.family for run in ours] != [run.family for run in theirs]


def test_the_script(
    experiment: Experiment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    train = write_table(tmp_path / "reviews.csv", ("body", "stars"), made_rows(40))
    test = write_table(tmp_path / "test.csv", ("stars", "body"), [(label, text) for text, label in made_rows(12, 1)])
    flags = ("--model", experiment.folder, "--train", train, "--text", "body", "--label", "stars", "--test", test)
    assert run_here(monkeypatch, SCRIPT, *flags, *QUICK) == 0
    out = capsys.readouterr().out
    assert "documents/reviews, " in out
    (line,) = (line for line in out.splitlines() if line.startswith("test accuracy of the best epoch's weights: "))
    assert "; majority class 50.0; tf-idf " in line
    assert "what is learned is one of the classes no, yes" in caplog.text
    (result,) = results(experiment, "reviews")
    assert result.rows == {"train": 30, "validation": 10}
    assert result.test_rows == {"test": 12}
    assert {"accuracy", "macro_f1"} == set(result.test_metrics)
    assert set(result.tested.files) == {"predictions/validation.tsv", "predictions/test.tsv"}
    rows = predicted(result, "test.tsv")
    assert [row["id"] for row in rows] == [str(number) for number in range(1, 13)]
    assert sum(row["label"] == row["prediction"] for row in rows) / 12 == pytest.approx(result.test_metrics["accuracy"])
    assert "| model | reviews |" in write_table2([experiment.folder], tmp_path / "table2.md")
    # Again: nothing is computed, and the files stay as they are.
    before = {path: path.read_bytes() for path in Path(result.folder).rglob("*") if path.is_file()}
    assert run_here(monkeypatch, SCRIPT, *flags, *QUICK) == 0
    assert {path: path.read_bytes() for path in Path(result.folder).rglob("*") if path.is_file()} == before


def test_another_test_table_takes_the_place_of_the_first(experiment: Experiment, tmp_path: Path) -> None:
    """Its figures, files and warnings do."""
    rows = made_rows(40)
    train = write_table(tmp_path / "t.csv", ("body", "label"), rows)
    known = write_table(tmp_path / "known.csv", ("body", "label"), rows[:20])
    new = write_table(tmp_path / "new.csv", ("body",), [(text,) for text, _ in made_rows(6, 9, most=5)])

    def run(test: Path | None, **changes: Any) -> Run:
        (result,) = finetune(experiment, documents(train, test), epoch=1, **changes).results
        found = read_run(Path(result.folder))
        assert found == result
        files = {f"predictions/{path.name}" for path in (Path(result.folder) / "predictions").iterdir()}
        assert files == set(result.tested.files)
        return result

    first = run(known)
    assert first.every_warning[: len(first.warnings)] == first.warnings
    of_test = first.every_warning[len(first.warnings) :]
    (warning,) = of_test
    assert warning.startswith("t test: 15 of its 20 texts are trained on as well")
    second = run(new)
    assert (second.every_warning, second.test_metrics, second.test_rows) == (second.warnings, {}, {})
    assert "predictions/test.tsv" in second.tested.files
    assert run(None) == second, "without a test table the predictions of the last one stay"


@pytest.mark.slow
def test_pairs_and_two_tables_more(experiment: Experiment, tmp_path: Path) -> None:
    texts = [text for text, _ in made_rows(40)]
    rows = [
        (text, texts[number - number % 2], "same" if number % 2 == 0 else "other") for number, text in enumerate(texts)
    ]
    train = write_table(tmp_path / "t.csv", ("a", "b", "label"), rows)
    validation = write_table(tmp_path / "v.csv", ("label", "b", "a"), [(label, b, a) for a, b, label in rows[:10]])
    test = write_table(tmp_path / "test.csv", ("b", "a"), [(b, a) for a, b, _ in rows[:6]])
    task = documents(train, test, text="a,b", validation=str(validation), cut="windows")
    (result,) = finetune(experiment, task).results
    assert result.rows == {"train": 40, "validation": 10}
    assert (result.test_metrics, result.test_rows) == ({}, {}), "the test table has no labels"
    (first, *_) = predicted(result, "test.tsv")
    assert list(first) == ["id", "prediction", "p_other", "p_same"]
    assert not any(name.startswith("predictions/test-") for name in list(result.tested.files))
    # Other names of the same rows are others in the files, and the run is not trained again.
    named = Documents(replace(task.question, id="b"))
    (again,) = finetune(experiment, named).results
    assert (again.folder, again.epochs) == (result.folder, result.epochs)
    assert [row["id"] for row in predicted(again, "test.tsv")] == [b for _, b, _ in rows[:6]]


def test_questions_of_one_table_have_columns_of_their_own(experiment: Experiment, tmp_path: Path) -> None:
    rows = [(text, label, number % 3) for number, (text, label) in enumerate(made_rows(40))]
    train = write_table(tmp_path / "t.csv", ("body", "label", "stars"), rows)
    for label, kind, length in (("label", None, 32), ("label", None, 16), ("stars", "ordered", 32)):
        finetune(experiment, documents(train, label=label, kind=kind), epoch=1, length=length)
    write_table2([experiment.folder], tmp_path / "table2.md")
    text = (tmp_path / "table2.md").read_text()
    assert "(paper)" not in text, "it has no figures of these"
    header = next(line for line in text.splitlines() if line.startswith("| model |"))
    for column in (
        "t, label label, kind classes, n=32",
        "t, label label, kind classes, n=16",
        "t, label stars, kind ordered, n=32",
    ):
        assert f"| {column} |" in header


def test_from_scratch(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write_table(tmp_path / "t.csv", ("body", "label"), made_rows(40))
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "config.json").write_bytes((experiment.folder / "config.json").read_bytes())
    flags = ("--model", fresh, "--train", train, "--text", "body", "--label", "label", "--from_scratch")
    assert run_here(monkeypatch, SCRIPT, *flags, *QUICK, "--set", "model.vocab_size=280") == 0
    place = Experiment(fresh, experiment.config)
    (path,) = (place.checkpoints / "documents" / "t").glob("scratch-*")
    result = read_run(path)
    assert result is not None
    assert result.origin.checkpoint == ""
    (kept,) = (place.checkpoints / "documents" / "t" / "cache").glob("tokenizer-*/tokenizer.json")
    assert kept.read_bytes() == (path / "tokenizer" / "tokenizer.json").read_bytes()
    # The run's folder alone is enough to predict.
    alone = shutil.copytree(path, tmp_path / "alone")
    assert len(Predictor(alone, "cpu")(["a token"])["prediction"]) == 1
