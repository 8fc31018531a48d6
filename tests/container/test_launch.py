"""The launcher against a real engine: start, follow, kill, stop, resume, and what is left behind."""

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from container_engine import Engine
from launching import Launcher, wait_until
from run_files import assert_same_weights, last_step, records
from small import write_experiment
from ssh_program import on_path, write_ssh

from nystromformer.container.engine import Engine as Connection
from nystromformer.container.jobs import find_jobs
from nystromformer.training.archive import read_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]

STEPS = 480


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
    engine: Engine, launch: Launcher, dataset_folder: Path, tmp_path: Path
) -> None:
    cut = experiment(tmp_path / "cut")
    flags = ("--dataset", dataset_folder, "--gpus", "none")
    launch("pretrain", cut, *flags)
    wait_until(lambda: last_step(cut) >= 66, "a step after the first checkpoint")
    said = launch("kill", "cut").stdout
    assert "cut-pretrain: killed after step" in said
    assert re.search(r"cp-000\d\.cp", said), "names what the run goes on from"
    killed_at = last_step(cut)
    assert killed_at < STEPS, "the run was over before it was killed"

    launch("resume", cut)
    wait_until(lambda: last_step(cut) > killed_at, "more steps than before")
    said = launch("stop", "cut-pretrain").stdout
    assert "cut-pretrain: stopped after step" in said
    stop = records(cut, "stop")[-1]
    assert stop["signal"] == "SIGTERM"
    saved = sorted((cut / "model").glob("cp-*-step-*.cp"))[-1]
    assert read_checkpoint(saved)["step"] == stop["step"] == last_step(cut) < STEPS
    assert saved.name in said

    ended = launch("pretrain", cut, *flags, "--follow")
    assert f"going on from {saved.name}, step {stop['step']} of {STEPS}" in ended.stdout
    assert "cut-pretrain: done" in ended.stderr

    whole = experiment(tmp_path / "whole")
    launch("pretrain", whole, *flags, "--follow")
    assert_same_weights(cut, whole, "cp-0007.model")
    learned = [{key: r[key] for key in ("step", "loss", "gradient_norm")} for r in records(whole, "train")]
    assert learned == [{key: r[key] for key in ("step", "loss", "gradient_norm")} for r in records(cut, "train")]


def test_logs_stream_while_it_runs_and_end_with_it(launch: Launcher, dataset_folder: Path, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "streamed", epochs=40)
    launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none")
    follower = launch.begin("logs", "-f", "streamed")
    assert follower.stdout is not None
    seen = [next(line for line in follower.stdout if re.search(r"step \d+/2400: loss", line)) for _ in range(2)]
    assert seen[0] != seen[1]
    launch("stop", "streamed")
    rest = follower.stdout.read()
    assert "stopped by SIGTERM after step" in rest
    assert follower.wait(20) == 128 + signal.SIGTERM
    assert rest.count("stopped by SIGTERM") == 1
    assert launch("logs", "streamed", "--tail", 1).stdout.strip().endswith("its checkpoint is written")
    assert launch("logs", folder).stdout == (folder / "pretrain.txt").read_text()


def test_three_starts_at_once_are_one(engine: Engine, launch: Launcher, dataset_folder: Path, tmp_path: Path) -> None:
    folder = experiment(tmp_path / "thrice", epochs=400)
    starts = [launch.begin("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none") for _ in range(3)]
    said = [(start.communicate()[0], start.returncode) for start in starts]
    assert sorted(status for _, status in said) == [0, 2, 2], said
    for text, status in said:
        assert ("thrice-pretrain: started" if status == 0 else "pretrain is running already, in the container") in text
    assert names(engine) == {"thrice-pretrain"}
    assert len(records(folder, "start")) == 1


def test_what_cannot_start_says_why_and_leaves_no_container(
    engine: Engine, launch: Launcher, dataset_folder: Path, tmp_path: Path
) -> None:
    folder = experiment(tmp_path / "broken")
    refused = launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "0", status=2)
    assert "broken-pretrain failed (2)" in refused.stderr
    assert "--device cuda: this machine has 0 CUDA devices" in refused.stderr
    assert "--gpus none" in refused.stderr
    several = launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "0,1", status=2)
    assert "this container sees no GPU, though it was started to use 2" in several.stderr
    missing = launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none", "--image", "absent", status=2)
    assert "the engine has no image absent" in missing.stderr
    assert names(engine) == set()


def test_the_printed_docker_command_makes_the_same_container(
    engine: Engine, launch: Launcher, docker_command: str, dataset_folder: Path, tmp_path: Path
) -> None:
    folder = experiment(tmp_path / "odd name's $HOME", epochs=40)
    words = ("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none", "--env", "A=b c")
    more = (
        "--set",
        "model.dropout_prob=0",
        "--restart",
        "on-failure:2",
        "--shm_size",
        "64m",
        "--mount",
        f"{tmp_path}:/more:ro",
    )
    line = launch(*words, *more, "--dry_run").stdout
    assert names(engine) == set()

    launch(*words, *more)
    (name,) = names(engine)
    ours = essentials(engine, name)
    engine.client.containers.get(name).remove(force=True)
    shell = ["/bin/bash", "-c", line.replace("docker", docker_command, 1)]
    made = subprocess.run(shell, env=engine.env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    theirs = essentials(engine, name)
    assert ours == theirs
    assert shlex.split(line)[-1] == ours["Cmd"][-1]


def essentials(engine: Engine, name: str) -> dict[str, object]:
    """What of `docker inspect` decides what a container does."""
    detail = engine.client.api.inspect_container(name)
    config, host = detail["Config"], detail["HostConfig"]
    kept = {key: config.get(key) for key in ("Cmd", "User", "Labels", "Image", "WorkingDir", "StopTimeout")}
    kept |= {key: host.get(key) for key in ("NetworkMode", "IpcMode", "ShmSize", "RestartPolicy", "Init")}
    mounts = sorted((mount["Source"], mount["Destination"], mount["RW"]) for mount in detail["Mounts"])
    return {**kept, "Env": sorted(config["Env"]), "Mounts": mounts}


def test_a_run_over_two_processes_stops_with_a_checkpoint(
    launch: Launcher, dataset_folder: Path, tmp_path: Path
) -> None:
    folder = experiment(tmp_path / "two", epochs=400)
    # The engine of the tests hands over no GPUs; the processes are those that two would get.
    launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "0,1", "--device", "cpu")
    wait_until(lambda: len(records(folder, "train")) > 3, "steps")
    assert records(folder, "start")[-1]["processes"] == 2
    said = launch("stop", "two").stdout
    stop = records(folder, "stop")[-1]
    assert f"two-pretrain: stopped after step {stop['step']} of 24000" in said
    (saved,) = (folder / "model").glob(f"cp-*-step-{stop['step']:08d}.cp")
    assert read_checkpoint(saved)["step"] == stop["step"]
    assert launch("ps").stdout.splitlines()[1].split()[3] == "stopped"


def test_through_ssh(engine: Engine, dataset_folder: Path, tmp_path: Path) -> None:
    """An engine of another machine: nothing is checked or read here, and logs and progress come through it."""
    folder = experiment(tmp_path / "far", epochs=400)
    path = on_path(write_ssh(tmp_path / "ssh", engine.url))
    launch = Launcher(engine, DOCKER_HOST="ssh://user@machine", PATH=path)
    launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none")
    wait_until(lambda: len(records(folder, "train")) > 3, "steps")
    row = launch("ps").stdout.splitlines()[1].split()
    assert row[3] == "running"
    assert re.fullmatch(r"[1-9]\d*/24000", row[7])
    follower = launch.begin("logs", "-f", "far")
    assert follower.stdout is not None
    assert next(line for line in follower.stdout if re.search(r"step \d+/24000: loss", line))
    assert "step" in launch("logs", "far", "--tail", "1").stdout
    assert "far-pretrain: stopped" in launch("stop", "far").stdout
    follower.stdout.read()
    assert follower.wait(30) == 128 + signal.SIGTERM
    assert launch("logs", "far").stdout == (folder / "pretrain.txt").read_text(), "of one that has ended, too"


def test_the_engine_restarts_what_failed(
    engine: Engine, launch: Launcher, dataset_folder: Path, tmp_path: Path
) -> None:
    folder = experiment(tmp_path / "again", epochs=400)
    launch("pretrain", folder, "--dataset", dataset_folder, "--gpus", "none", "--restart", "on-failure:2")
    wait_until(lambda: last_step(folder) > 62, "a checkpoint")
    (job,) = find_jobs(Connection({"DOCKER_HOST": engine.url}))
    # Not `kill` of the engine, upon which it does not restart anything: the process dies by itself.
    # Detached: the restart may be quicker than a question for the exit status.
    kill = ["/bin/bash", "-c", "kill -9 $(pgrep -f run_pretrain)"]
    engine.client.containers.get(job.id).exec_run(kill, detach=True)
    wait_until(lambda: len(records(folder, "start")) == 2, "a second start")
    assert launch("ps").stdout.splitlines()[1].split()[6] == "1", "restarts"
    assert records(folder, "start")[1]["step"] >= 60
    assert json.loads((folder / "config.json").read_text()), "untouched"
