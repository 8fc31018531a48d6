"""The shape that `--set` gave a run once: later commands take it from its checkpoints, and refuse another."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from finetuning import write_sst2
from small import CPU, VOCABULARY, run_here, small_data

from nystromformer.tasks.experiment.folder import SHAPE, open_experiment
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.checkpoint import read_checkpoint

PRETRAIN, VALIDATE, GLUE = "code/run_pretrain.py", "code/run_validation.py", "code/run_glue.py"
GIVEN = {"model.vocab_size": VOCABULARY + 20, "model.num_head": 4, "model.head_dim": 4}
"""config.json has 300 tokens and 2 heads of 8."""
FLAGS = [f"{key}={value}" for key, value in GIVEN.items()]
SAID = "set with --set when the run began: model.vocab_size=320, model.num_head=4, model.head_dim=4"


@pytest.fixture(scope="module")
def began(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A run of one epoch whose shape is by flags."""
    folder = tmp_path_factory.mktemp("began")
    data = small_data(pretraining_setting__epoch=1, pretraining_setting__batches_per_epoch=2)
    (folder / "config.json").write_text(json.dumps(data))
    experiment = open_experiment(folder, [*FLAGS, "model.dropout_prob=0.2"])
    assert experiment.set_by_flag == GIVEN
    assert pretrain(experiment, dataset_folder, CPU) is None
    return folder


@pytest.fixture
def run(began: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(began, tmp_path / "run"))


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sst2(tmp_path_factory.mktemp("glue"), train=8, dev=4, test=2)


@pytest.fixture
def flags(dataset_folder: Path, glue_folder: Path) -> dict[str, list[object]]:
    """What each command needs beside the folder."""
    more = ["--set", "pretraining_setting.epoch=2", "--set", "model.dropout_prob=0.2"]
    tuning = ["--task", "SST-2", "--glue", glue_folder, "--epoch", 1, "--batch_size", 4]
    return {
        PRETRAIN: ["--dataset", dataset_folder, *more],
        VALIDATE: ["--dataset", dataset_folder, "--rows", 4],
        GLUE: tuning,
    }


@pytest.mark.parametrize("script", [PRETRAIN, VALIDATE, GLUE])
def test_it_is_not_repeated(
    script: str,
    run: Path,
    flags: dict[str, list[object]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, script, "--model", run, *flags[script]) == 0
    assert caplog.text.count("set with --set when the run began") == caplog.text.count(SAID) == 1
    if script == PRETRAIN:
        content = read_checkpoint(run / "model" / "cp-0001.model")
        assert content["model"]["encoder.embeddings.word.weight"].shape[0] == GIVEN["model.vocab_size"]


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


def shape(folder: Path, *overrides: str) -> dict[str, Any]:
    model = open_experiment(folder, overrides).config.model
    return {key: getattr(model, name) for key, name in SHAPE.items()}


def test_some_of_it_or_all_of_it_may_be_repeated(run: Path) -> None:
    expected = shape(run, *FLAGS)
    assert expected == shape(run) == shape(run, "model.num_head=4") == shape(run, FLAGS[0], FLAGS[2])
    assert {key: expected[key] for key in GIVEN} == GIVEN


def test_a_folder_without_checkpoints_is_opened_without_torch(tmp_path: Path) -> None:
    """What is wrong with a config.json is told at once."""
    (tmp_path / "config.json").write_text(json.dumps(small_data()))
    program = (
        "import pathlib, sys; from nystromformer.tasks.experiment.folder import open_experiment\n"
        f"open_experiment(pathlib.Path({str(tmp_path)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
