"""Killed at any moment and started again, a run ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import Forked
from processes import wait_for
from run_files import assert_same_weights, last_step, records, weights
from small import CPU, command, stop_at, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.checkpoint import find_checkpoints, read_checkpoint

STEPS = 40
TWO = {"pretraining_setting__epoch": 2}
FREQUENT = {"pretraining_setting__epoch": 4, "pretraining_setting__minutes_per_checkpoint": 1e-6}


def losses(folder: Path) -> list[tuple[int, float]]:
    return [(r["step"], r["loss"]) for r in records(folder, "train")]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert pretrain(write_experiment(folder, **FREQUENT), dataset_folder, CPU) is None
    return folder


def start(folder: Path, dataset_folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command("code/run_pretrain.py", "--model", folder, "--dataset", dataset_folder),
        **options,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr.txt").open("ab"),
    )


def is_past(process: subprocess.Popen[bytes] | Forked, folder: Path, step: int) -> bool:
    """Whether the run's log is past a step, or the run is over."""
    return process.poll() is not None or last_step(folder) >= step


def test_sigkill_at_any_moment_ends_in_the_same_bits(
    tmp_path: Path, dataset_folder: Path, uninterrupted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = write_experiment(tmp_path, **FREQUENT)
    log = tmp_path / "stderr.txt"
    process = Forked(lambda: 0 if pretrain(experiment, dataset_folder, CPU) is None else 1, log)
    wait_for(lambda: is_past(process, tmp_path, 17))
    time.sleep(0.03)
    process.kill()
    process.wait()
    assert not (tmp_path / "model" / "cp-0003.model").exists(), "killed before the end"
    with caplog.at_level("INFO"):
        assert pretrain(experiment, dataset_folder, CPU) is None
    assert_same_weights(tmp_path, uninterrupted, "cp-0003.model")
    assert losses(tmp_path) == losses(uninterrupted), "no line is lost or written twice"
    assert "going on from" in caplog.text


def test_sigterm_leaves_a_checkpoint_at_the_very_step(
    tmp_path: Path, dataset_folder: Path, uninterrupted: Path
) -> None:
    experiment = write_experiment(tmp_path, pretraining_setting__epoch=4)  # no checkpoint by minutes
    process = start(tmp_path, dataset_folder, start_new_session=True)  # to the whole group, as a scheduler sends it
    log = tmp_path / "model" / "log.jsonl"
    wait_for(lambda: log.exists() and '"train"' in log.read_text())
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    newest = find_checkpoints(tmp_path / "model")[-1]
    content = read_checkpoint(newest.path)
    assert 2 <= content["step"] < STEPS
    assert f"stopped by SIGTERM after step {content['step']}" in (tmp_path / "stderr.txt").read_text()
    assert pretrain(experiment, dataset_folder, CPU) is None
    assert_same_weights(tmp_path, uninterrupted, "cp-0003.model")


def one_epoch(folder: Path, dataset_folder: Path, seed: int = 0) -> Path:
    changes = {"pretraining_setting__epoch": 1, "pretraining_setting__seed": seed}
    assert pretrain(write_experiment(folder, **changes), dataset_folder, CPU) is None
    return folder


def test_accumulation_gives_the_same_steps(tmp_path: Path, dataset_folder: Path) -> None:
    curves = []
    for size in (16, 4):
        changes = {"pretraining_setting__batch_size": 16, "gpu_setting__inst_per_gpu": size, "model__dropout_prob": 0.0}
        changes |= {**TWO, "pretraining_setting__batches_per_report": 1}
        pretrain(write_experiment(tmp_path / str(size), **changes), dataset_folder, CPU)
        lines = records(tmp_path / str(size), "train")
        curves.append([(r["loss"], r["sop_loss"], r["gradient_norm"]) for r in lines])
    assert len(curves[0]) == 20
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-5)


def test_a_seed_fixes_everything(tmp_path: Path, dataset_folder: Path) -> None:
    first = one_epoch(tmp_path / "first", dataset_folder)
    assert_same_weights(one_epoch(tmp_path / "again", dataset_folder), first, "cp-0000.model")
    other = one_epoch(tmp_path / "other", dataset_folder, seed=6)
    one, two = (weights(folder, "cp-0000.model")["mlm.bias"] for folder in (first, other))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("step", [10, 20])
def test_a_stop_at_an_epochs_end_does_not_wait_for_its_validation(
    step: int, tmp_path: Path, dataset_folder: Path, two_epochs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start makes up for it, also where nothing else is left to do."""
    experiment = write_experiment(tmp_path, **TWO)
    with monkeypatch.context() as patched:
        stop_at(step - 1, patched)
        assert pretrain(experiment, dataset_folder, CPU) == signal.SIGTERM
    assert find_checkpoints(tmp_path / "model")[-1].path.name.endswith(f"step-{step:08d}.cp")
    assert pretrain(experiment, dataset_folder, CPU) is None
    curves = [
        [(r["type"], r["step"], r["loss"]) for r in records(folder, "train", "validation")]
        for folder in (two_epochs, tmp_path)
    ]
    assert curves[0] == curves[1]
    for name in ("cp-0000.model", "cp-0001.model"):
        assert_same_weights(tmp_path, two_epochs, name)
    for name in ("cp-0000.cp", "cp-0001.cp"):
        first, second = (read_checkpoint(folder / "model" / name)["optimizer"] for folder in (two_epochs, tmp_path))
        assert first["param_groups"] == second["param_groups"], "the learning rate, too"


def test_tensorboard_and_log_hold_the_curves(uninterrupted: Path) -> None:
    train_lines = records(uninterrupted, "train")
    assert [r["step"] for r in train_lines] == list(range(2, STEPS + 1, 2))
    curve = [line["loss"] for line in train_lines]
    assert sum(curve[-3:]) < 0.9 * sum(curve[:3]), "it falls"
    figures = {"loss", "mlm_accuracy", "sop_accuracy", "learning_rate", "gradient_norm", "tokens_per_second"}
    assert figures | {"memory_mib"} <= train_lines[0].keys()
    assert [r["step"] for r in records(uninterrupted, "validation")] == [10, 20, 30, 40]
    assert list((uninterrupted / "model" / "tensorboard").glob("events.*"))
    assert json.loads((uninterrupted / "model" / "log.jsonl").read_text().splitlines()[0])["type"] == "start"


def test_what_config_says_of_the_optimizer_holds_after_a_resume(tmp_path: Path, dataset_folder: Path) -> None:
    pretrain(write_experiment(tmp_path, pretraining_setting__epoch=1), dataset_folder, CPU)
    changed = {"pretraining_setting__weight_decay": 0.25, "pretraining_setting__adam_beta2": 0.98}
    pretrain(write_experiment(tmp_path, **TWO, **changed), dataset_folder, CPU)
    decayed, free = read_checkpoint(tmp_path / "model" / "cp-0001.cp")["optimizer"]["param_groups"]
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.25, 0.0)
    assert decayed["betas"][1] == 0.98
