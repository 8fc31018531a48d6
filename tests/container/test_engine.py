"""The launcher against a real engine: training that is killed and resumed, predictions, the service."""

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest
import torch
from container_engine import Engine
from finetuning import finetuned_glue, pretrained
from processes import wait_for
from run_files import assert_same_weights, last_step, records
from small import command, run_command, write_experiment

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]

STEPS = 600


class Launcher:
    """`launch.py` against an engine, as a process of its own."""

    def __init__(self, engine: Engine) -> None:
        self.env = engine.env

    def __call__(self, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command("code/launch.py", *words), env=self.env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def begin(self, *words: object) -> subprocess.Popen[str]:
        """Not waited for; stdout is a pipe."""
        return subprocess.Popen(
            command("code/launch.py", *words), env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


@pytest.fixture
def launch(engine: Engine) -> Launcher:
    return Launcher(engine)


def experiment(folder: Path, epochs: int = STEPS // 60) -> Path:
    """Long enough to be caught in the middle; a checkpoint every 60 steps."""
    write_experiment(folder, pretraining_setting__batches_per_epoch=60, pretraining_setting__epoch=epochs)
    return folder


def names(engine: Engine) -> set[str]:
    return {container.name for container in engine.client.containers.list(all=True, ignore_removed=True)}


def test_killed_stopped_and_resumed_ends_as_if_nothing_had_been(
    launch: Launcher, dataset_folder: Path, tmp_path: Path
) -> None:
    cut = experiment(tmp_path / "cut")
    flags = ("--dataset", dataset_folder, "--gpus", "none")
    assert "cut-pretrain: started" in launch("pretrain", cut, *flags).stdout
    wait_for(lambda: last_step(cut) >= 66, 120)
    assert launch("kill", "cut").stdout == "cut-pretrain: killed\n"
    killed_at = last_step(cut)
    assert killed_at < STEPS, "the run was over before it was killed"

    launch("resume", cut)
    follower = launch.begin("logs", "-f", "cut")
    assert follower.stdout is not None
    wait_for(lambda: last_step(cut) > killed_at, 120)
    assert launch("ps").stdout.splitlines()[1].split()[:3] == ["cut-pretrain", "pretrain", "running"]
    assert launch("stop", "cut-pretrain").stdout == "cut-pretrain: stopped\n"
    assert "stopped by SIGTERM after step" in follower.stdout.read()
    assert follower.wait(20) == 128 + signal.SIGTERM
    stop = records(cut, "stop")[-1]
    saved = sorted((cut / "model").glob("cp-*-step-*.cp"))[-1]
    assert torch.load(saved, weights_only=True)["step"] == stop["step"] == last_step(cut) < STEPS

    ended = launch("pretrain", cut, *flags, "--follow")
    assert f"going on from {saved.name}, step {stop['step']} of {STEPS}" in ended.stdout
    assert "cut-pretrain: done" in ended.stderr
    assert launch("logs", cut).stdout == (cut / "pretrain.txt").read_text()

    whole = experiment(tmp_path / "whole")
    launch("pretrain", whole, *flags, "--follow")
    assert_same_weights(cut, whole, f"cp-{STEPS // 60 - 1:04d}.model")


def test_what_cannot_start_says_why(engine: Engine, launch: Launcher, dataset_folder: Path, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "broken")
    refused = launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "0", "--follow", status=2)
    assert "--device cuda: this machine has 0 CUDA devices" in refused.stdout
    assert refused.stderr == "broken-pretrain: failed (2)\n"
    missing = launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none", "--image", "absent", status=2)
    assert "launch.py build" in missing.stderr
    assert names(engine) == set()


def test_predictions_and_the_service(launch: Launcher, dataset_folder: Path, tmp_path: Path) -> None:
    pretrained(tmp_path / "small", dataset_folder)
    run = finetuned_glue(tmp_path / "small", tmp_path / "tuned", "SST-2")
    (tmp_path / "new.csv").write_text("sentence\na landmark\nthe inverse matrix\n")
    words = (run, "--input", tmp_path / "new.csv")
    plain = run_command("code/run_predict.py", *words, "--out", tmp_path / "plain.csv")
    assert plain.returncode == 0, plain.stderr
    (tmp_path / "out").mkdir()
    launch("predict", *words, "--out", tmp_path / "out" / "new.csv", "--gpus", "none", "--follow")
    assert (tmp_path / "out" / "new.csv").read_bytes() == (tmp_path / "plain.csv").read_bytes()

    # Containers of this engine have the machine's network.
    launch("serve", run, "--port", 18_723, "--network", "host", "--gpus", "none")
    url, body = "http://127.0.0.1:18723/predict", json.dumps({"text": "a landmark"}).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    wait_for(lambda: "http://127.0.0.1:18723" in launch("logs", run).stdout, 120)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    assert launch("stop", run, "--timeout", 20).stdout.startswith(f"{run.name}-serve: ")
