"""A run with rotary positions through the commands: stopped, resumed, validated, fine-tuned on longer rows."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from finetuning import write_sst2
from small import LENGTH, run_here, stop_at, write_experiment

from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import find_checkpoints
from nystromformer.training.log import read_log

ROTARY = ["--set", "model.positions=rotary"]
PRETRAIN, VALIDATE, GLUE = "code/run_pretrain.py", "code/run_validation.py", "code/run_glue.py"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content: dict[str, torch.Tensor] = read_checkpoint(folder / "model" / "cp-0001.model")["model"]
    return content


def losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(r["type"], r["step"], r["loss"]) for r in read_log(folder / "model" / "log.jsonl") if "loss" in r]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_experiment(folder, pretraining_setting__epoch=2)
    with pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, PRETRAIN, "--model", folder, "--dataset", dataset_folder, *ROTARY) == 0
    return folder


@pytest.mark.parametrize("stop", [7, 10])
def test_a_stopped_run_ends_in_the_same_bits(
    stop: int,
    whole: Path,
    tmp_path: Path,
    dataset_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_experiment(tmp_path, pretraining_setting__epoch=2)
    flags = ["--model", tmp_path, "--dataset", dataset_folder]
    with monkeypatch.context() as patch:
        stop_at(stop, patch)
        assert run_here(patch, PRETRAIN, *flags, *ROTARY) == 128 + signal.SIGTERM
    before = [file.path.name for file in find_checkpoints(tmp_path / "model")]
    assert run_here(monkeypatch, PRETRAIN, *flags) == 2, "without the flag it would be another network"
    assert "model.positions: 'rotary' in the checkpoint, 'learned' now" in capsys.readouterr().err
    assert [file.path.name for file in find_checkpoints(tmp_path / "model")] == before
    assert run_here(monkeypatch, PRETRAIN, *flags, *ROTARY) == 0
    expected, resumed = weights(whole), weights(tmp_path)
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    assert losses(tmp_path) == losses(whole)
    assert "encoder.embeddings.position.weight" not in expected


def test_validation_and_longer_rows_for_finetuning(
    whole: Path,
    tmp_path: Path,
    dataset_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    of_folder = ["--model", folder]
    assert run_here(monkeypatch, VALIDATE, *of_folder, "--dataset", dataset_folder, "--rows", 4, *ROTARY) == 0
    glue = write_sst2(tmp_path / "glue", train=8, dev=4, test=2)
    tuning = ["--task", "SST-2", "--glue", glue, "--epoch", 1, "--batch_size", 4, "--pad_to", 2 * LENGTH]
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, GLUE, *of_folder, *tuning, *ROTARY) == 0
    assert "encoder of" in caplog.text
    assert "repeated" not in caplog.text, "there is no table to be made longer"
    capsys.readouterr()
    assert run_here(monkeypatch, GLUE, *of_folder, *tuning) == 2
    assert 'model.positions: "learned" in config.json, "rotary" in the checkpoint' in capsys.readouterr().err
