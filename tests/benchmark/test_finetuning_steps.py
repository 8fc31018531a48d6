"""The benchmark of fine-tuning steps: its rows, its models, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nystromformer.benchmark import finetune
from nystromformer.benchmark.models import our_config
from nystromformer.benchmark.questions.finetune import Finetuning
from nystromformer.model import ClassificationModel, count_parameters


def test_fine_tuning_steps_beside_transformers(tmp_path: Path, run_benchmark: Callable[..., str]) -> None:
    small = ["--width", 64, "--layers", 1, "--vocab_size", 500, "--repeats", 1, "--threads", 1, "--pad_to", 128]
    small += ["--batch", 4, "--batches", 2]
    assert "transformers, padded" in run_benchmark("finetune", *small, "--out", tmp_path)
    rows = json.loads((tmp_path / "finetune.json").read_text())["rows"]
    assert [row["rows"] for row in rows] == [8, 4, 4]
    assert rows[0]["tokens"] < 66 < 128 == rows[1]["tokens"] == rows[2]["tokens"]


def test_classifiers_that_are_compared_are_of_one_size() -> None:
    settings = Finetuning(vocab_size=500, width=64, num_layers=2)
    ours, theirs = ClassificationModel(our_config(settings, settings.pad_to), 2), finetune.peer_model(settings)
    assert count_parameters(theirs) - count_parameters(ours) in range(2 * 64 + 1)


def test_made_up_rows_are_as_long_as_sst2s() -> None:
    rows = finetune.MadeUpRows(5000, 500)
    assert 3 <= rows.lengths.min() < rows.lengths.max() <= 66
    assert 8 <= np.median(rows.lengths) <= 13
    batch = rows.batch(np.arange(4), 70)
    assert batch["mask_BN"].sum(1).tolist() == rows.lengths[:4].tolist()
    assert (batch["tokens_BN"][~batch["mask_BN"]] == 1).all()
