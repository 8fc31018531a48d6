"""Runs that end once epochs are no better."""

from pathlib import Path

import pytest
from finetuning import copy_of, finetune, sweep, write_sst2
from small import CPU, run_here, stop_at

from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue

SETTINGS = {"epochs": 6, "learning_rates": (1e-9,), "patience": 2}
"""Nothing is learned, so that no epoch is better than the first."""


def trained(experiment: Experiment, task: Glue) -> Run:
    (run,) = finetune(experiment, task, sweep(**SETTINGS), CPU).results
    return run


def test_a_run_stops_when_epochs_are_no_better(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Glue(find_tasks("SST-2")[0], write_sst2(tmp_path / "glue", train=24))
    whole = copy_of(source, tmp_path / "whole")
    with caplog.at_level("INFO"):
        run = trained(whole, task)
    assert [epoch.epoch for epoch in run.epochs] == [0, 1, 2]
    assert run.best.epoch == 0
    assert "accuracy was best in epoch 0 (--patience 2)" in caplog.text
    assert trained(whole, task).epochs == run.epochs, "done already"
    # Without its record, the run is found finished by its weights.
    (run.folder / "result.json").unlink()
    assert trained(whole, task).epochs == run.epochs
    apart = copy_of(source, tmp_path / "apart")
    with monkeypatch.context() as patched:
        stop_at(7, patched)  # within the last epoch
        assert finetune(apart, task, sweep(**SETTINGS), CPU).stopped_by is not None
    assert trained(apart, task).epochs == run.epochs


def test_patience_is_at_least_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = copy_of(source, tmp_path / "e")
    place = ("--model", experiment.folder, "--glue", write_sst2(tmp_path / "glue"), "--task", "SST-2")
    assert run_here(monkeypatch, "code/run_glue.py", *place, "--patience", 0) == 2
    assert "Invalid value for '--patience'" in capsys.readouterr().err
    assert read_run(experiment.checkpoints) is None
