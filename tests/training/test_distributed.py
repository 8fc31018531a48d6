"""Several processes train as one: the same steps, checkpoints that any number of processes reads, one stop for all."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forking import Forked, as_torchrun
from processes import wait_for
from run_files import records
from small import CPU, ROOT, write_experiment

from nystromformer.errors import UserError
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group, join_group
from nystromformer.training.checkpoint import find_checkpoints, read_checkpoint

STEPS = 30
EVERY_STEP = {
    "pretraining_setting__batch_size": 16,
    "pretraining_setting__batches_per_report": 1,
    "pretraining_setting__minutes_per_checkpoint": 1e-6,
}


def start(
    folder: Path, dataset_folder: Path, *flags: object, processes: int = 2, restarts: int = 0
) -> subprocess.Popen[bytes]:
    """The command under torchrun, in a process group of its own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    script = [ROOT / "code/run_pretrain.py", "--model", folder, "--dataset", dataset_folder, "--device", "cpu", *flags]
    return subprocess.Popen(
        [sys.executable, *launcher, f"--max_restarts={restarts}", *map(str, script)],
        env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr.txt").open("ab"),
        start_new_session=True,
    )


def run(folder: Path, dataset_folder: Path, *flags: object, processes: int = 2) -> int:
    return start(folder, dataset_folder, *flags, processes=processes).wait(timeout=180)


def stderr(folder: Path) -> str:
    return (folder / "stderr.txt").read_text()


def curve(folder: Path, steps: int = STEPS) -> torch.Tensor:
    lines = records(folder, "train")
    assert [r["step"] for r in lines] == list(range(1, len(lines) + 1)), "no line lost, none twice"
    return torch.tensor([[r[key] for key in ("mlm_loss", "sop_loss", "gradient_norm")] for r in lines[:steps]])


def assert_same_curve(folder: Path, expected: Path, steps: int = STEPS) -> None:
    assert len(curve(folder)) >= steps
    torch.testing.assert_close(curve(folder, steps), curve(expected, steps), rtol=0, atol=1e-5)


def wait_for_step(process: subprocess.Popen[bytes] | Forked, folder: Path, step: int) -> None:
    log = folder / "model" / "log.jsonl"
    wait_for(lambda: process.poll() is not None or (log.exists() and f'"step": {step},' in log.read_text()))
    assert process.poll() is None, stderr(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """16 rows in micro-batches of 4, one process, with dropout."""
    folder = tmp_path_factory.mktemp("alone")
    pretrain(write_experiment(folder, **EVERY_STEP), dataset_folder, CPU)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    [
        {"model__norm": "pre", "model__reversible": True},
        {"model__positions": "rotary", "pretraining_setting__optimizer": "stable_adamw"},
    ],
    ids=["reversible", "rotary with StableAdamW"],
)
def test_one_by_sixteen_four_by_four_and_two_processes_agree(
    network: dict[str, Any], tmp_path: Path, dataset_folder: Path
) -> None:
    folders = {name: tmp_path / name for name in ("1x16", "4x4", "2x4x2")}
    for name, folder in folders.items():
        rows = 16 if name == "1x16" else 4
        changes: dict[str, Any] = {"gpu_setting__inst_per_gpu": rows, "model__dropout_prob": 0.0, **network}
        experiment = write_experiment(folder, **EVERY_STEP, **changes)
        if name == "2x4x2":
            assert run(folder, dataset_folder) == 0, stderr(folder)
        else:
            pretrain(experiment, dataset_folder, CPU)
    for name in ("4x4", "2x4x2"):
        assert_same_curve(folders[name], folders["1x16"], steps=20)
    validations = [[r["loss"] for r in records(folder, "validation")] for folder in folders.values()]
    assert len(validations[0]) == 3
    torch.testing.assert_close(torch.tensor(validations[1:]), torch.tensor(validations[:1] * 2), rtol=0, atol=1e-5)


def fork(experiment: Experiment, dataset_folder: Path) -> list[Forked]:
    """The command's work in two processes."""

    def work() -> int:
        with join_group() as group:
            stopped_by = pretrain(experiment, dataset_folder, CPU, group=group)
        group.leave(0 if stopped_by is None else 128 + stopped_by)

    return [Forked(work, experiment.folder / "stderr.txt", environment) for environment in as_torchrun(2)]


def test_stopped_with_two_processes_and_resumed_with_one(tmp_path: Path, dataset_folder: Path, alone: Path) -> None:
    """Dropout, order and masks go on exactly; the signals come as a scheduler sends them: to all, and again."""
    experiment = write_experiment(tmp_path, **EVERY_STEP)
    processes = fork(experiment, dataset_folder)
    wait_for_step(processes[0], tmp_path, 5)
    for each in processes * 2:
        os.kill(each.pid, signal.SIGTERM)
    assert [each.wait(timeout=60) for each in processes] == [128 + signal.SIGTERM] * 2, stderr(tmp_path)
    newest = read_checkpoint(find_checkpoints(tmp_path / "model")[-1].path)
    assert 5 <= newest["step"] < STEPS
    assert re.findall(r"stopped by SIGTERM after step (\d+)", stderr(tmp_path)) == [str(newest["step"])]
    expected = read_checkpoint(alone / "model" / "cp-0000.cp")
    assert {name: w.shape for name, w in newest["model"].items()} == {
        name: w.shape for name, w in expected["model"].items()
    }
    pretrain(write_experiment(tmp_path, **EVERY_STEP), dataset_folder, CPU)
    assert_same_curve(tmp_path, alone)


@pytest.mark.slow
def test_a_lost_worker_is_replaced_and_the_curve_is_the_same(tmp_path: Path, dataset_folder: Path, alone: Path) -> None:
    write_experiment(tmp_path, **EVERY_STEP)
    process = start(tmp_path, dataset_folder, restarts=3)
    wait_for_step(process, tmp_path, 4)
    workers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    os.kill(workers[-1], signal.SIGKILL)
    assert process.wait(timeout=180) == 0, stderr(tmp_path)
    assert stderr(tmp_path).count("going on from") >= 1
    assert_same_curve(tmp_path, alone)


def test_processes_that_cannot_share_a_batch_are_told_so(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path, pretraining_setting__batch_size=20)
    for rank in range(3):
        with pytest.raises(UserError, match=r"3 processes cannot share batches of 20 rows .* divides .*, such as 1$"):
            pretrain(experiment, dataset_folder, CPU, group=Group(rank, 3, rank))
    assert not (tmp_path / "model").exists()
