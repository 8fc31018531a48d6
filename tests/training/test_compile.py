"""`"compile": true` is the same training."""

import shutil
from pathlib import Path

import pytest
import torch
from run_files import records, weights
from small import CPU, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain

SHORT = {
    "pretraining_setting__batches_per_epoch": 4,
    "pretraining_setting__epoch": 2,
    "model__dropout_prob": 0.0,
    "model__num_layers": 1,
    "model__num_landmarks": None,
    "model__attn_type": {"name": "softmax"},  # quick to compile; test_contract.py compiles the others
}
LAST = "cp-0001.model"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_compiled_training_is_the_same_training(tmp_path: Path, dataset_folder: Path) -> None:
    runs = [tmp_path / "compiled", tmp_path / "plain"]
    for run in runs:
        pretrain(write_experiment(run, **SHORT, model__compile=run is runs[0]), dataset_folder, CPU)
    curves = [[(r["loss"], r["gradient_norm"]) for r in records(run, "train")] for run in runs]
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-4)
    assert weights(runs[0], LAST).keys() == weights(runs[1], LAST).keys(), "either resumes from the other's checkpoint"
