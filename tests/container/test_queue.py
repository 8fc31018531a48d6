"""Experiments over GPUs, one after another on each, with a launcher that dies.

The engine of the tests drops the request for GPUs, so that the runs compute on CPUs; who gets which is the same.
"""

import re
import signal
from pathlib import Path

import pytest
from container_engine import Engine
from launching import Launcher, wait_until
from run_files import last_step, records
from small import write_experiment

from nystromformer.container.engine import Engine as Connection
from nystromformer.container.jobs import Job, find_jobs

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]


def experiments(folder: Path, *names: str, epochs: int = 6) -> list[Path]:
    for name in names:
        write_experiment(folder / name, pretraining_setting__batches_per_epoch=40, pretraining_setting__epoch=epochs)
    return [folder / name for name in names]


def jobs(engine: Engine) -> dict[str, Job]:
    return {job.name: job for job in find_jobs(Connection({"DOCKER_HOST": engine.url}))}


def test_a_queue_outlives_its_launcher(engine: Engine, dataset_folder: Path, tmp_path: Path) -> None:
    launch = Launcher(engine)
    first, second, third, fourth = folders = experiments(tmp_path, "first", "second", "third", "fourth")
    flags = ("--dataset", dataset_folder, "--gpus", "0,1", "--device", "cpu")
    driver = launch.begin("queue", *folders, *flags)
    wait_until(lambda: last_step(first) and last_step(second), "two experiments at work")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert {name: job.gpus for name, job in jobs(engine).items() if job.is_active} == {
        "first-pretrain": "0",
        "second-pretrain": "1",
    }
    shown = launch("ps").stdout
    assert re.search(r"third-pretrain\.waiting +third +pretrain +waiting +0 or 1", shown)
    wait_until(lambda: all(job.has_ended for job in jobs(engine).values() if not job.is_waiting), "the end of both")
    assert not (third / "model").exists(), "nobody is there to start it"

    refused = launch("queue", third, *flags, status=2)
    assert "third: waits in the queue already" in refused.stderr
    launch("stop", "fourth")
    said = launch("queue").stdout
    assert "third-pretrain: running on GPU 0" in said
    assert "third-pretrain: done" in said
    assert not (fourth / "model").exists(), "taken out"
    assert {name: job.state for name, job in jobs(engine).items()} == {
        f"{name}-pretrain": "done" for name in ("first", "second", "third")
    }
    assert all(len(records(folder, "start")) == 1 and last_step(folder) == 240 for folder in (first, second, third))
