"""The `docker run` lines of docs/containers.md, as they are written there, beside folders of the project's layout."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import torch
from container_engine import Engine
from corpora import write_wiki
from finetuning import write_sst2
from processes import wait_for
from run_files import last_step, records
from small import ROOT, write_dataset, write_experiment
from wikihop_files import write_wikihop

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_containers_left")]

LINES = re.findall(
    r"```sh\n(docker run .*?)```", (ROOT / "docs" / "containers.md").read_text(encoding="utf-8"), re.DOTALL
)


class Project:
    """A project's folders, and the page's lines in them."""

    def __init__(self, folder: Path, engine: Engine, docker_command: str) -> None:
        self.folder = folder
        self._engine = engine
        self._docker = docker_command
        (folder / "code").symlink_to(ROOT / "code")

    def run(self, name: str, under: str, **replaced: str) -> None:
        """The page's line for the container of that name, in a folder of the project; not waited for."""
        (line,) = [line for line in LINES if f"--name={name} " in line]
        for old, new in replaced.items():
            assert old in line
            line = line.replace(old, new)
        self.docker(line.removeprefix("docker "), cwd=self.folder / under)

    def docker(self, words: str, cwd: Path | None = None) -> None:
        shell = ["/bin/bash", "-c", f"{self._docker} {words}"]
        done = subprocess.run(shell, env=self._engine.env, cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    @property
    def containers(self) -> list[str]:
        return [name for each in self._engine.client.api.containers(all=True) for name in each["Names"]]


@pytest.fixture
def project(engine: Engine, docker_command: str, tmp_path: Path) -> Project:
    return Project(tmp_path, engine, docker_command)


def test_pretraining_stops_with_a_checkpoint_at_the_very_step_and_goes_on(project: Project) -> None:
    write_dataset(project.folder / "data-preprocessing" / "512-roberta")
    home = project.folder / "nystrom-512"
    write_experiment(home, pretraining_setting__batches_per_epoch=40, pretraining_setting__epoch=10)
    project.run("pretrain", under="nystrom-512")
    wait_for(lambda: last_step(home) > 10, 120)
    project.docker("stop pretrain")
    stop = records(home, "stop")[-1]
    assert stop["signal"] == "SIGTERM"
    (saved,) = (home / "model").glob("cp-*-step-*.cp")
    assert torch.load(saved, weights_only=True)["step"] == stop["step"] == last_step(home) < 400
    wait_for(lambda: not project.containers, 120)
    assert "its checkpoint is written" in (home / "pretrain.txt").read_text()

    project.run("pretrain", under="nystrom-512")
    wait_for(lambda: last_step(home) == 400 and not project.containers, 120)
    assert torch.load(home / "model" / "cp-0009.cp", weights_only=True)["step"] == 400


def test_fine_tuning_on_glue_and_wikihop(project: Project) -> None:
    write_dataset(project.folder / "data-preprocessing" / "512-roberta")
    home = project.folder / "nystrom-512"
    # A hundred epochs of one step, because the lines begin with the checkpoints 99 and 69.
    settings = {"batches_per_epoch": 1, "epoch": 100, "validate_batches_per_epoch": 1}
    write_experiment(home, **{f"pretraining_setting__{key}": value for key, value in settings.items()})
    project.run("pretrain", under="nystrom-512")
    wait_for(lambda: (home / "model" / "cp-0099.model").exists() and not project.containers, 120)

    write_sst2(project.folder / "glue")
    project.run("glue", under="nystrom-512", MRPC="SST-2")
    write_wikihop(project.folder / "wikihop")
    project.run("wikihop", under="nystrom-512")
    wait_for(lambda: not project.containers, 120)
    for task, log in (("glue/SST-2", "glue.txt"), ("wikihop", "wikihop.txt")):
        found = list((home / "model" / task).glob("*/run.json"))
        assert found, (home / log).read_text()
        assert json.loads(found[0].read_text())["experiment"] == "model"


def test_preprocessing(project: Project) -> None:
    scripts = project.folder / "data-preprocessing" / "wiki"
    write_wiki(scripts)
    (scripts / "preprocess.py").write_text((ROOT / "data-preprocessing" / "wiki" / "preprocess.py").read_text())
    project.run("preprocess", under="data-preprocessing")
    wait_for(lambda: not project.containers, 120)
    assert (scripts / "unified" / "corpus.json").is_file(), (scripts.parent / "preprocess.txt").read_text()


def test_every_line_is_tried() -> None:
    assert re.findall(r"--name=(\S+)", "".join(LINES)) == ["pretrain", "glue", "wikihop", "preprocess"]
    for line in LINES:
        assert "exec python3 /" in line
        assert "--init" in line
        assert '--user "$(id -u):$(id -g)"' in line
