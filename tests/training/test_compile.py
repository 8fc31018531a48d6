"""`"compile": true`: the same training where there is a compiler, a line that says so where there is none."""

import logging
from pathlib import Path

import pytest
import torch
from run_files import assert_same_weights, records, weights
from small import CPU, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.device import missing_compiler

SHORT = {
    "pretraining_setting__batches_per_epoch": 4,
    "pretraining_setting__epoch": 2,
    "model__dropout_prob": 0.0,
    "model__num_layers": 1,
    "model__num_landmarks": None,
    "model__attn_type": {"name": "softmax"},  # quick to compile; test_contract.py compiles the others
}
LAST = "cp-0001.model"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """A run that was never compiled."""
    folder = tmp_path_factory.mktemp("plain")
    assert pretrain(write_experiment(folder, **SHORT), dataset_folder, CPU) is None
    return folder


def test_without_a_compiler_layers_that_were_to_be_compiled_run_as_they_are(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    dataset_folder: Path,
    plain: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.INFO):
        pretrain(write_experiment(tmp_path / "run", **SHORT, model__compile=True), dataset_folder, CPU)
    assert "found no C++ compiler" in caplog.text
    assert_same_weights(tmp_path / "run", plain, LAST)


@pytest.mark.slow
@pytest.mark.skipif(missing_compiler(CPU.device) is not None, reason="no C++ compiler here")
def test_compiled_training_is_the_same_training(tmp_path: Path, dataset_folder: Path, plain: Path) -> None:
    pretrain(write_experiment(tmp_path, **SHORT, model__compile=True), dataset_folder, CPU)
    curves = [[(r["loss"], r["gradient_norm"]) for r in records(run, "train")] for run in (tmp_path, plain)]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)
    assert weights(tmp_path, LAST).keys() == weights(plain, LAST).keys(), "either resumes from the other's checkpoint"
