"""`"compile": true`: the same training where there is a compiler, a warning where there is none."""

import logging
from pathlib import Path

import pytest
import torch
from small import CPU, write_experiment
from torch import nn

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.compile import compile_units, missing_compiler
from nystromformer.training.log import read_log

SHORT = {"pretraining_setting__batches_per_epoch": 6, "pretraining_setting__epoch": 1, "model__dropout_prob": 0.0}


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)


@pytest.mark.usefixtures("without_compiler")
def test_without_a_compiler_layers_run_as_they_are(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, dataset_folder: Path
) -> None:
    missing = compile_units([nn.Linear(3, 3)], CPU.device)
    assert missing is not None
    assert "found no C++ compiler" in missing
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path / "run", **SHORT, model__compile=True), dataset_folder, CPU)
    assert "found no C++ compiler" in caplog.text
    assert (tmp_path / "run" / "model" / "cp-0000.model").exists()


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler(CPU.device) is not None, reason="no C++ compiler here")
def test_compiled_training_is_the_same_training(tmp_path: Path, dataset_folder: Path) -> None:
    curves = []
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        pretrain(write_experiment(folder, **SHORT, model__compile=compiled), dataset_folder, CPU)
        records = read_log(folder / "model" / "log.jsonl")
        curves.append([(r["loss"], r["gradient_norm"]) for r in records if r["type"] == "train"])
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=0, atol=1e-4)
    plain, compiled = (read_checkpoint(tmp_path / str(flag) / "model" / "cp-0000.model") for flag in (False, True))
    assert plain["model"].keys() == compiled["model"].keys(), "either goes on from the other's checkpoint"
