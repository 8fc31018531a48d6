"""Learning rates and lengths that nobody asked for: what is tried, what it costs, and that it resumes."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetuning import copy_of, made_rows, sweep, write_sst2, write_table
from hypothesis import given
from hypothesis import strategies as st
from small import CPU, run_here, stop_at

from nystromformer.data.tokenizer import load_tokenizer
from nystromformer.runs.record import Run, find_runs
from nystromformer.tasks.documents import task as classifying
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.divide import Division
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning import trial
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.sweep import finetune
from nystromformer.tasks.finetuning.trial import SHARE, Some, raised_rate, trial_size

RATES = (1e-3, 3e-3, 1e8)
"""The last one diverges."""
WANTED: dict[str, Any] = {"learning_rates": (), "batch_sizes": (4,), "epochs": 5, "train_rows": 24}


class Sizes:
    """What a split tells of its examples' tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = np.asarray(tokens)

    def __len__(self) -> int:
        return len(self.tokens)


@given(
    st.lists(st.integers(2, 600), min_size=1, max_size=300),
    st.lists(st.integers(2, 600), min_size=1, max_size=60),
    st.integers(1, 64),
    st.integers(1, 20),
)
def test_all_trials_take_a_tenth_of_the_run(train: list[int], held_out: list[int], batch: int, epochs: int) -> None:
    steps, rows = trial_size(Sizes(train), Sizes(held_out), batch, epochs, 3)  # type: ignore[arg-type]
    run = epochs * (3 * sum(train) + sum(held_out))
    each = steps * min(batch, len(train)) * 3 * np.mean(train) + rows * np.mean(held_out)
    assert 1 <= rows <= len(held_out)
    assert steps == 0 or 3 * each <= SHARE * run * (1 + 1e-9)
    next_step = min(batch, len(train)) * 3 * np.mean(train)
    assert 3 * (each + next_step) > SHARE * run * (1 - 1e-9), "one step more would be too many"


def test_a_quarter_of_the_steps_trains_with_twice_the_rate() -> None:
    assert raised_rate(1e-4, 25, 100) == pytest.approx(2e-4)
    assert raised_rate(1e-4, 100, 100) == pytest.approx(1e-4)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_table(tmp_path / "t.csv", ("body", "label"), made_rows(40, most=20))


def documents(table: Path, cut: Cut | None = None, **division: Any) -> Documents:
    wanted = Division(**({"share": 0.25} | division))
    return Documents(Question("t", str(table), "body", "label", cut=cut, division=wanted))


def trained(experiment: Experiment, table: Path, **changes: Any) -> Run:
    (run,) = finetune(experiment, documents(table), sweep(**WANTED | changes), CPU).results
    return run


def test_the_rate_of_the_lowest_loss_is_taken(
    source: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trial, "SHARE", 0.8)
    monkeypatch.setattr(trial, "PRETRAINED", RATES)
    experiment = copy_of(source, tmp_path / "e")
    with caplog.at_level("INFO"):
        run = trained(experiment, table)
    tried = find_runs(experiment.checkpoints / "documents" / "t" / "cache")
    assert not tried, "trials are no runs for reports"
    assert [each.folder for each in find_runs(experiment.checkpoints)] == [run.folder]
    said = next(line for line in caplog.messages if "is used" in line)
    losses = [float(part.split()[1]) for part in said.split(": ")[1].split("; ")[0].split(", ")]
    assert losses[2] == math.inf
    assert run.settings.learning_rate == RATES[losses.index(min(losses))]
    assert not list(experiment.checkpoints.rglob("cache/**/*.model")), "their weights are gone"
    caplog.clear()
    with caplog.at_level("INFO"):
        again = trained(experiment, table)
    assert again.folder == run.folder
    assert sum("done already" in line for line in caplog.messages) == 3, "two trials and the run"
    # The run itself is that of a command that names the rate.
    plain = trained(copy_of(source, tmp_path / "plain"), table, learning_rates=(run.settings.learning_rate,))
    assert plain.identity == run.identity
    assert plain.epochs == run.epochs


def test_stopped_in_a_trial_it_ends_with_the_same(
    source: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "SHARE", 0.8)
    monkeypatch.setattr(trial, "PRETRAINED", RATES[:2])
    whole = trained(copy_of(source, tmp_path / "whole"), table)
    apart = copy_of(source, tmp_path / "apart")
    with monkeypatch.context() as patched:
        stop_at(2, patched)
        assert finetune(apart, documents(table), sweep(**WANTED), CPU).stopped_by is not None
    assert len(list(apart.checkpoints.rglob("cache/**/*.cp"))) == 1
    resumed = trained(apart, table)
    assert (resumed.identity, resumed.epochs) == (whole.identity, whole.epochs)


def test_a_short_run_takes_the_middle_one(
    source: Path, table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        run = trained(copy_of(source, tmp_path / "e"), table, epochs=1)
    assert run.settings.learning_rate == trial.PRETRAINED[1]
    assert "too short to try learning rates" in caplog.text


def test_folds_share_the_rate_of_the_first(
    source: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trial, "SHARE", 0.8)
    experiment = copy_of(source, tmp_path / "e")
    flags = ("--train", table, "--text", "body", "--label", "label", "--folds", 2, "--batch_size", 4, "--epoch", 5)
    with caplog.at_level("INFO"):
        run_here(monkeypatch, "code/run_classify.py", "--model", experiment.folder, *flags, "--device", "cpu")
    assert caplog.text.count("is used") == 1
    first, second = find_runs(experiment.checkpoints)
    assert first.settings == second.settings


def test_several_batch_sizes_need_a_rate(
    source: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = copy_of(source, tmp_path / "e")
    place = ("--model", experiment.folder, "--train", table, "--text", "body", "--label", "label")
    assert run_here(monkeypatch, "code/run_classify.py", *place, "--batch_size", "4,8") == 2
    assert "expected --lr with several batch sizes" in capsys.readouterr().err
    # Other commands have a rate.
    task = ("--model", experiment.folder, "--glue", write_sst2(tmp_path / "glue"), "--task", "SST-2", "--epoch", 1)
    assert run_here(monkeypatch, "code/run_glue.py", *task, "--batch_size", "4,8", "--device", "cpu") == 0
    assert {run.settings.learning_rate for run in find_runs(experiment.checkpoints)} == {3e-5}


def test_some_examples_are_those_of_the_whole(source: Path) -> None:
    rows = made_rows(12, most=20)
    labels = np.arange(len(rows)) % 2
    texts = Texts("t", [text for text, _ in rows], None, labels)
    whole = EncodedTexts(texts, load_tokenizer(source / "model" / "tokenizer"), 16, sentence_types=False)
    some = Some(whole, np.asarray([2, 5, 9]))
    assert len(some) == 3
    assert some.lengths.tolist() == whole.lengths[[2, 5, 9]].tolist()
    ours, theirs = some.batch(np.asarray([0, 2])), whole.batch(np.asarray([2, 9]))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert some.fingerprint != Some(whole, np.asarray([2])).fingerprint


@pytest.mark.parametrize(
    ("words", "cut", "length", "rule"),
    [(8, None, 16, "head"), (40, None, 32, "windows"), (40, Cut("head_and_tail"), 32, "head_and_tail")],
)
def test_rows_are_as_long_as_the_texts_need(
    source: Path,
    tmp_path: Path,
    words: int,
    cut: Cut | None,
    length: int,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(classifying, "_LENGTH_STEP", 8)
    rows = [(" ".join(["softmax"] * words), number % 2) for number in range(40)]
    rows[0] = ("query " * 600, 0)  # one of the five in a hundred
    table = write_table(tmp_path / "t.csv", ("body", "label"), rows)
    experiment = copy_of(source, tmp_path / "e")
    task = documents(table, cut)
    with caplog.at_level("INFO"):
        (run,) = finetune(experiment, task, sweep(epochs=1, batch_sizes=(32,)), CPU).results
    assert run.length == length <= experiment.config.model.max_seq_len
    assert run.texts is not None
    assert run.texts["cut"]["rule"] == rule
    assert f"--length {length}" in caplog.text
    (asked,) = finetune(experiment, task, sweep(epochs=1, batch_sizes=(32,), length=24), CPU).results
    assert (asked.length, asked.texts["cut"]["rule"]) == (24, "head" if cut is None else rule)  # type: ignore[index]
