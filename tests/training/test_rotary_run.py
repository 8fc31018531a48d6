"""A run with rotary positions through the commands: validated, and fine-tuned on longer rows."""

import shutil
from pathlib import Path

import pytest
from finetuning import write_sst2
from small import LENGTH, run_here, write_experiment

ROTARY = ["--set", "model.positions=rotary"]
PRETRAIN, VALIDATE, GLUE = "code/run_pretrain.py", "code/run_validation.py", "code/run_glue.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_experiment(folder, pretraining_setting__epoch=2)
    with pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, PRETRAIN, "--model", folder, "--dataset", dataset_folder, *ROTARY) == 0
    return folder


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
    assert run_here(monkeypatch, PRETRAIN, *of_folder, "--dataset", dataset_folder) == 2
    assert 'model.positions: "rotary" in the checkpoint, "learned" now' in capsys.readouterr().err
