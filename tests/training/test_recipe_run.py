"""Runs with the switches of a modern recipe: stopped and started again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import assert_same_weights, records
from small import CPU, run_here, stop_at, write_experiment

from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import PretrainingSteps, RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group

MODERN: dict[str, Any] = {
    "model__attn_type": {"every": 2, "global": "softmax", "local": {"name": "local", "block_size": 8}},
    "model__num_landmarks": None,
    "model__conv_kernel_size": None,
    "model__positions": "rotary",
    "model__rope_theta_local": 100.0,
    "model__norm": "pre",
    "model__norm_type": "rms_norm",
    "model__skip_first_prenorm": True,
    "model__feed_forward": "glu",
    "model__activation": "silu",
    "model__bias": False,
    "model__head_transform": False,
    "model__depth_scaled_init": True,
    "model__embedding_dropout_prob": 0.0,
    "model__hidden_dropout_prob": 0.2,
    "pretraining_setting__mask_prob": 0.3,
    "pretraining_setting__mask_replace_prob": 1.0,
    "pretraining_setting__random_replace_prob": 0.0,
    "pretraining_setting__validation_mask_prob": 0.15,
    "pretraining_setting__optimizer": "stable_adamw",
    "pretraining_setting__max_grad_norm": None,
    "pretraining_setting__batch_size_start": 4,
    "pretraining_setting__batch_growth_tokens": 1000,
}


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_a_modern_run_that_was_stopped_ends_in_the_same_bits(
    schedule: str, tmp_path: Path, dataset_folder: Path
) -> None:
    settings = {**MODERN, "pretraining_setting__schedule": schedule}
    assert pretrain(write_experiment(tmp_path / "whole", **settings), dataset_folder, CPU) is None
    stopped = write_experiment(tmp_path / "stopped", **settings)
    for step in (3, 17):  # while batches grow, and after
        with pytest.MonkeyPatch.context() as patch:
            stop_at(step, patch)
            assert pretrain(stopped, dataset_folder, CPU) is not None
    assert pretrain(stopped, dataset_folder, CPU) is None
    assert_same_weights(tmp_path / "stopped", tmp_path / "whole", "cp-0002.model")
    losses = [[(line["step"], line["loss"]) for line in records(tmp_path / name)[:-1] if "loss" in line]
              for name in ("whole", "stopped")]  # fmt: skip
    assert losses[0] == losses[1]


def test_validation_masks_are_berts_whatever_training_masks(tmp_path: Path, dataset_folder: Path) -> None:
    def batches(**changes: Any) -> list[Any]:
        write_experiment(tmp_path, **changes)
        experiment = open_experiment(tmp_path)
        dataset = experiment.dataset(dataset_folder)
        preparation = RowPreparation(dataset, experiment.config)
        (training,) = PretrainingSteps(dataset.train, preparation, experiment.config.pretraining_setting)[
            0
        ].micro_batches[:1]
        return [ValidationBatches(dataset.validation, preparation, 8)[0], training]

    usual, fifteen = batches(), batches(**{k: v for k, v in MODERN.items() if "mask" in k or "replace" in k})
    for name in ("tokens_BN", "positions_BK", "labels_BK"):
        assert torch.equal(usual[0][name], fifteen[0][name])
    tokens, positions, labels = (fifteen[1][name] for name in ("tokens_BN", "positions_BK", "labels_BK"))
    found = tokens.gather(1, positions)[labels >= 0].unique()
    assert len(found) == 1, "[MASK] and nothing else"
    assert (labels >= 0).sum() > 1.8 * (usual[1]["labels_BK"] >= 0).sum()


def test_processes_share_batches_that_grow(tmp_path: Path, dataset_folder: Path) -> None:
    write_experiment(tmp_path, **MODERN)
    experiment = open_experiment(tmp_path)
    dataset = experiment.dataset(dataset_folder)
    preparation = RowPreparation(dataset, experiment.config)
    setting = experiment.config.pretraining_setting
    whole, *parts = (PretrainingSteps(dataset.train, preparation, setting, group) for group in
                     (Group(), Group(0, 2), Group(1, 2)))  # fmt: skip
    for step in (0, 20):
        expected = torch.cat([batch["tokens_BN"] for batch in whole[step].micro_batches])
        found = torch.cat([batch["tokens_BN"] for part in parts for batch in part[step].micro_batches])
        assert torch.equal(found, expected)


def test_batches_that_processes_cannot_share(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_experiment(tmp_path)
    flags = ["--set", "pretraining_setting.batch_size_start=3", "--set", "pretraining_setting.batch_growth_tokens=99"]
    assert run_here(monkeypatch, "code/run_pretrain.py", "--model", tmp_path, "--dataset", dataset_folder, *flags) == 2
    assert "expected a smaller number that divides batch_size = 8, found 3" in capsys.readouterr().err
