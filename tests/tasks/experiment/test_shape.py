"""The shape of a run is its checkpoints': later commands refuse another."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from finetuning import pretrained, write_sst2
from small import run_here, small_data

PRETRAIN, VALIDATE, GLUE = "code/run_pretrain.py", "code/run_validation.py", "code/run_glue.py"


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("began")
    return pretrained(folder, dataset_folder, pretraining_setting__epoch=1).folder


@pytest.fixture
def run(began: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(began, tmp_path / "run"))


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sst2(tmp_path_factory.mktemp("glue"), train=8, dev=4, test=2)


@pytest.fixture
def flags(dataset_folder: Path, glue_folder: Path) -> dict[str, list[object]]:
    """What each command needs beside the folder."""
    tuning = ["--task", "SST-2", "--glue", glue_folder, "--epoch", 1, "--batch_size", 4]
    return {
        PRETRAIN: ["--dataset", dataset_folder],
        VALIDATE: ["--dataset", dataset_folder, "--rows", 4],
        GLUE: tuning,
    }


@pytest.mark.parametrize("script", [PRETRAIN, VALIDATE, GLUE])
def test_another_one_is_refused(
    script: str,
    run: Path,
    flags: dict[str, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = json.loads((run / "config.json").read_text())
    data["model"]["transformer_hidden_dim"] = 64
    (run / "config.json").write_text(json.dumps(data))
    assert run_here(monkeypatch, script, "--model", run, *flags[script]) == 2
    said = capsys.readouterr().err
    assert said.count("error:") == 1
    assert f"{run}/model/cp-000" in said


def test_a_folder_without_checkpoints_is_opened_without_torch(tmp_path: Path) -> None:
    """What is wrong with a config.json is told at once."""
    (tmp_path / "config.json").write_text(json.dumps(small_data()))
    program = (
        "import pathlib, sys; from nystromformer.tasks.experiment.folder import open_experiment\n"
        f"open_experiment(pathlib.Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
