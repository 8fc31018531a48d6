"""A run whose attention draws random numbers: stopped anywhere, it goes on as one that never stopped."""

import signal
from pathlib import Path

import pytest
import torch
from small import CPU, stop_at, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.archive import read_checkpoint

PERFORMER = {
    "model__attn_type": {"name": "performer", "num_features": 8, "redraw_steps": 3},
    "model__num_landmarks": None,
    "pretraining_setting__epoch": 2,
}


@pytest.mark.slow
def test_a_stopped_reformer_of_reversible_layers_goes_on_as_one_that_never_stopped(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention = {"name": "reformer", "chunk_length": 8, "redraw_steps": 3}
    changes = {**PERFORMER, "model__attn_type": attention, "model__norm": "pre", "model__reversible": True}
    whole, stopped = (write_experiment(tmp_path / name, **changes) for name in "ab")
    assert pretrain(whole, dataset_folder, CPU) is None
    stop_at(7, monkeypatch)
    assert pretrain(stopped, dataset_folder, CPU) == signal.SIGTERM
    monkeypatch.undo()
    assert pretrain(stopped, dataset_folder, CPU) is None
    first, second = (read_checkpoint(each.folder / "model" / "cp-0001.model")["model"] for each in (whole, stopped))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(name.endswith(".rotations_RDK") for name in first)


@pytest.mark.parametrize("stop", [5, 6, 10, 13])
def test_a_stopped_run_draws_what_an_uninterrupted_one_draws(
    stop: int, tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within an interval of features, at the border of two, at an epoch's end, and in the next epoch."""
    whole, stopped = (write_experiment(tmp_path / name, **PERFORMER) for name in "ab")
    assert pretrain(whole, dataset_folder, CPU) is None
    stop_at(stop, monkeypatch)
    assert pretrain(stopped, dataset_folder, CPU) == signal.SIGTERM
    monkeypatch.undo()
    assert pretrain(stopped, dataset_folder, CPU) is None
    first, second = (read_checkpoint(each.folder / "model" / "cp-0001.model")["model"] for each in (whole, stopped))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    draws = [value for name, value in first.items() if name.endswith(".draw")]
    assert [int(each) for each in draws] == [6, 6], "step 19 of 20, and every 3 steps new features"
    seeds = [int(value) for name, value in first.items() if name.endswith(".seed")]
    assert len(set(seeds)) == 2, "layers have their own"
