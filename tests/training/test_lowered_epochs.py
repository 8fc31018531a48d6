"""A run whose `epoch` is lowered below the step that it has reached ends where it stands, and may go on later."""

import signal
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_same_weights, records
from small import CPU, run_here, stop_at, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import find_checkpoints

PRETRAIN = "code/run_pretrain.py"
FOUR = {"pretraining_setting__epoch": 4, "pretraining_setting__batches_per_epoch": 4}


def stop_after(step: int, folder: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Train until a scheduler's SIGTERM in a step."""
    with monkeypatch.context() as patched:
        stop_at(step - 1, patched)
        assert pretrain(write_experiment(folder, **changes), dataset, CPU) == signal.SIGTERM


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "model").glob("cp-*"))


def validations(folder: Path) -> list[int]:
    return [record["step"] for record in records(folder, "validation")]


def test_it_ends_with_a_validation_and_a_checkpoint_of_where_it_stands(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And with a higher `epoch` again it ends in the same bits as a run that never was to end before."""
    stop_after(10, tmp_path, dataset_folder, monkeypatch, **FOUR)
    assert validations(tmp_path) == [4, 8]
    flags = ["--model", tmp_path, "--dataset", dataset_folder, "--device", "cpu"]
    lower = ["--set", "pretraining_setting.epoch=1"]
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, PRETRAIN, *flags, *lower) == 0
    assert "step 10 of 4: the run is already past its new end" in caplog.text
    assert validations(tmp_path) == [4, 8, 10]
    ends = [f"cp-{number:04d}.{kind}" for number in range(3) for kind in ("cp", "model")]
    assert checkpoints(tmp_path) == ends
    assert [read_checkpoint(tmp_path / "model" / f"cp-0002.{kind}")["step"] for kind in ("cp", "model")] == [10, 10]

    # Once more: there is nothing left to do.
    caplog.clear()
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, PRETRAIN, *flags, *lower) == 0
    assert "done: 10 of 4 steps, already past its new end" in caplog.text
    assert validations(tmp_path) == [4, 8, 10]

    # Further, stopped within the same epoch: what was written last is the newest.
    stop_after(11, tmp_path, dataset_folder, monkeypatch, **FOUR)
    newest = find_checkpoints(tmp_path / "model")[-1]
    assert (newest.path.name, read_checkpoint(newest.path)["step"]) == ("cp-0002-step-00000011.cp", 11)
    assert run_here(monkeypatch, PRETRAIN, *flags) == 0
    assert checkpoints(tmp_path) == [f"cp-{number:04d}.{kind}" for number in range(4) for kind in ("cp", "model")]
    pretrain(write_experiment(tmp_path / "whole", **FOUR), dataset_folder, CPU)
    for number in (2, 3):
        assert_same_weights(tmp_path, tmp_path / "whole", f"cp-{number:04d}.model")
        assert read_checkpoint(tmp_path / "model" / f"cp-{number:04d}.model")["step"] == 4 * (number + 1)
