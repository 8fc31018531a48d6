"""The regression on words that every encoder is compared with, as a model of its own."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, made_rows, sweep, write_sst2, write_table
from hypothesis import given
from hypothesis import strategies as st
from small import CPU, run_here

from nystromformer.errors import UserError
from nystromformer.runs.record import Run
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.bag_of_words import Sample
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.finetuning.words import Words, features, fit_words
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.tasks.prediction.loaded import load_run, load_words

ROWS = [text for text, _ in made_rows(60)]
RANDOM = np.random.default_rng(0)
LEARNED: dict[str, tuple[Labels, int | None]] = {
    "classes": (RANDOM.integers(0, 3, 60), 4),
    "two": (RANDOM.integers(0, 2, 60), 2),
    "one": (np.ones(60, dtype=np.int64), 3),
    "value": (RANDOM.standard_normal(60).astype(np.float32), None),
    "questions": (np.stack([RANDOM.integers(0, 2, 60), np.zeros(60, dtype=np.int64)], axis=1), None),
}


@pytest.mark.parametrize("name", LEARNED)
def test_its_scores_are_those_of_the_regression(name: str, tmp_path: Path) -> None:
    labels, num_classes = LEARNED[name]
    second = ROWS[::-1] if name == "two" else None
    texts = Texts("rows", ROWS, second, labels)
    words = fit_words(texts, labels, num_classes)
    sample = Sample(features(words.vectorizers, texts), labels, num_classes)
    expected = torch.from_numpy(sample.fit(words.strength).scores(sample.x_nF)).float()
    scores = torch.from_numpy(words.scores(texts))
    # Of classes the regression gives probabilities, and the model what becomes them.
    torch.testing.assert_close(scores.softmax(1) if num_classes else scores, expected, rtol=1e-4, atol=1e-5)
    words.save(tmp_path / "words")
    again = Words.read(tmp_path / "words")
    assert again is not None
    assert (again.scores(texts) == words.scores(texts)).all(), "to the last digit"


@given(st.lists(st.text(max_size=12), min_size=2, max_size=6), st.text(max_size=12))
def test_any_text_is_read_again_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], other: str
) -> None:
    folder = tmp_path_factory.mktemp("words")
    words = fit_words(Texts("rows", rows), np.arange(len(rows)) % 2, 2)
    words.save(folder)
    again, texts = Words.read(folder), Texts("other", [*rows, other])
    assert again is not None
    assert (again.scores(texts) == words.scores(texts)).all()


@pytest.mark.parametrize("name", ["words.json", "words.safetensors"])
def test_what_is_damaged_is_not_read(name: str, tmp_path: Path) -> None:
    assert Words.read(tmp_path) is None
    fit_words(Texts("rows", ROWS), *LEARNED["two"]).save(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="Remove the folder: the same training command creates it again"):
        Words.read(tmp_path)


def documents(folder: Path) -> Documents:
    rows = [(text, label, 3.5 * len(text)) for text, label in made_rows(60)]
    later = [(text, label, 3.5 * len(text)) for text, label in made_rows(30, seed=1)]
    train = write_table(folder / "rows.csv", ("body", "label", "price"), rows)
    test = write_table(folder / "later.csv", ("body", "label", "price"), later)
    return Documents(Question("rows", str(train), "body", "label", str(test), division=Division(share=0.25)))


@pytest.fixture(scope="module")
def finished(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Run, Path]:
    folder = tmp_path_factory.mktemp("finished")
    experiment = copy_of(source, folder / "experiment")
    (run,) = finetune(experiment, documents(folder), sweep(epochs=1), CPU).results
    return experiment, run, folder


def test_it_is_told_before_the_first_epoch_and_shown_in_the_table(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    experiment = copy_of(source, tmp_path / "experiment")
    documents(tmp_path)
    place = ("--model", experiment.folder, "--train", tmp_path / "rows.csv", "--test", tmp_path / "later.csv")
    flags = ("--text", "body", "--label", "label", "--validation", 0.25, "--epoch", 1, "--device", "cpu")
    said, shown = [], []
    for length in (16, 32):
        caplog.clear()
        assert run_here(monkeypatch, "code/run_classify.py", *place, *flags, "--length", length) == 0
        lines = caplog.messages
        out = capsys.readouterr().out
        (bar,) = [number for number, line in enumerate(lines) if "baseline: tf-idf" in line]
        (first,) = [number for number, line in enumerate(lines) if "parameters, cpu" in line]
        assert bar < first
        said.append(lines[bar].partition("tf-idf")[2].rpartition(" (")[0])
        shown.append([line for line in out.splitlines() if line.startswith("tf-idf")])
        assert "majority class" in out
        assert "bag of words" not in out
    assert said[0] == said[1], "the same for every encoder"
    assert shown[0][0].split() == shown[1][0].split()
    (folder,) = experiment.checkpoints.glob("documents/rows/tfidf-*")
    before = (folder / "words.json").stat().st_mtime_ns
    # With all baselines, they are measured beside it.
    assert run_here(monkeypatch, "code/run_classify.py", *place, *flags, "--length", 16, "--baselines") == 0
    out = capsys.readouterr().out
    assert "bag of words" in out
    assert next(line for line in out.splitlines() if line.startswith("tf-idf")).split() == shown[0][0].split()
    assert (folder / "words.json").stat().st_mtime_ns == before
    # And they stay where another command does not ask for them.
    assert run_here(monkeypatch, "code/run_classify.py", *place, *flags, "--length", 16, "--seed", 1) == 0
    assert "bag of words" in capsys.readouterr().out


def test_it_predicts_without_the_encoder(
    finished: tuple[Experiment, Run, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run, folder = finished
    out = tmp_path / "out.csv"
    place = (run.folder, "--input", folder / "later.csv", "--out", out)
    hidden = run.folder / "cp-0000.model"
    with monkeypatch.context() as patched:
        # As after --discard_weights.
        patched.setattr(Path, "exists", lambda self: self != hidden and self.is_file())
        assert run_here(patched, "code/run_predict.py", *place, "--baseline") == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "prediction", "p_no", "p_yes"]
    with (folder / "later.csv").open(newline="") as file:
        told = load_words(run.folder).predict([row["body"] for row in csv.DictReader(file)])
    assert [row["prediction"] for row in rows] == told.labels


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_vectors_are_what_the_head_gets(
    finished: tuple[Experiment, Run, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    _, run, _ = finished
    table = write_table(tmp_path / "rows.csv", ("body",), [("a softmax row",), ("",), ("the query",)])
    out = tmp_path / f"out{ending}"
    place = (run.folder, "--input", table, "--out", out, "--skip_empty", "--device", "cpu")
    assert run_here(monkeypatch, "code/run_predict.py", *place, "--embed") == 0
    if ending == ".csv":
        with out.open(newline="") as file:
            cells = list(csv.reader(file))[1:]
        found = [None if not row[1] else [float(cell) for cell in row[1:]] for row in cells]
    elif ending == ".jsonl":
        found = [json.loads(line)["vector"] for line in out.read_text().splitlines()]
    else:
        found = __import__("pyarrow.parquet").parquet.read_table(out)["vector"].to_pylist()
    assert found[1] is None
    loaded = load_run(run.folder, "cpu")
    scores = loaded.predict(["a softmax row", "the query"])
    with torch.inference_mode():
        logits = loaded.model.logits(torch.tensor([found[0], found[2]]))
    torch.testing.assert_close(logits.softmax(1).numpy(), scores.probabilities, rtol=1e-2, atol=1e-3)


def test_what_has_no_baseline(
    source: Path,
    finished: tuple[Experiment, Run, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = Glue(find_tasks("SST-2")[0], write_sst2(tmp_path / "glue"))
    (run,) = finetune(copy_of(source, tmp_path / "experiment"), task, sweep(epochs=1), CPU).results
    place = (run.folder, "--input", finished[2] / "later.csv", "--out", tmp_path / "out.csv", "--text", "body")
    assert run_here(monkeypatch, "code/run_predict.py", *place, "--baseline") == 2
    assert "expected a run of run_classify.py" in capsys.readouterr().err
    for flags, named in ((("--embed",), "--embed"), (("--predict", "last"), "--predict")):
        assert run_here(monkeypatch, "code/run_predict.py", *place, "--baseline", *flags) == 2
        assert f"--baseline: expected no {named} with it" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
