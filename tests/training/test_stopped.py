"""Stopped in any step and resumed, a run of any network ends in the same bits as one that never stopped."""

import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import assert_same_weights, records, weights
from small import CPU, stop_at, write_experiment

from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import RowPreparation, TrainingSteps, ValidationBatches
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group


def drawing(name: str, **parameters: Any) -> dict[str, Any]:
    """An attention that draws random numbers anew every three steps."""
    return {"model__attn_type": {"name": name, "redraw_steps": 3, **parameters}, "model__num_landmarks": None}


MODERN: dict[str, Any] = {
    "model__attn_type": ["softmax", {"name": "local", "block_size": 8}],
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
"""The switches of a modern recipe, whose batches grow."""
NETWORKS: dict[str, dict[str, Any]] = {
    "rotary": {"model__positions": "rotary"},
    "performer": drawing("performer", num_features=8),
    "reversible reformer": drawing("reformer", chunk_length=8) | {"model__norm": "pre", "model__reversible": True},
    "modern, cosine": {**MODERN, "pretraining_setting__schedule": "cosine"},
    "modern, wsd": {**MODERN, "pretraining_setting__schedule": "wsd"},
}


def write(folder: Path, network: str) -> Any:
    return write_experiment(folder, pretraining_setting__epoch=2, **NETWORKS[network])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Callable[[str], Path]:
    @cache
    def run(network: str) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        assert pretrain(write(folder, network), dataset_folder, CPU) is None
        return folder

    return run


@pytest.mark.parametrize(
    ("network", "stop"),
    [
        ("rotary", 7),
        # Within an interval of features, and at an epoch's end.
        *(("performer", stop) for stop in (5, 10)),
        pytest.param("reversible reformer", 7, marks=pytest.mark.slow),
        # While batches grow, and after.
        ("modern, cosine", 3),
        ("modern, wsd", 17),
    ],
)
def test_a_stopped_run_ends_in_the_same_bits(
    network: str,
    stop: int,
    whole: Callable[[str], Path],
    tmp_path: Path,
    dataset_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = write(tmp_path, network)
    with monkeypatch.context() as patched:
        stop_at(stop, patched)
        assert pretrain(experiment, dataset_folder, CPU) == signal.SIGTERM
    assert pretrain(experiment, dataset_folder, CPU) is None
    assert_same_weights(tmp_path, whole(network), "cp-0001.model")
    whole_bytes = (whole(network) / "model" / "cp-0001.model").read_bytes()
    assert (tmp_path / "model" / "cp-0001.model").read_bytes() == whole_bytes, "nothing in it tells the two apart"
    resumed, expected = (
        [(r["type"], r["step"], r["loss"]) for r in records(run, "train", "validation")]
        for run in (tmp_path, whole(network))
    )
    assert resumed == expected


def test_layers_draw_features_of_their_own_every_few_steps(whole: Callable[[str], Path]) -> None:
    numbers = {
        name: value for name, value in weights(whole("performer"), "cp-0001.model").items() if value.numel() == 1
    }
    draws = [int(value) for name, value in numbers.items() if name.endswith(".draw")]
    assert draws == [6, 6], "step 19 of 20, and every 3 steps new features"
    assert len({int(value) for name, value in numbers.items() if name.endswith(".seed")}) == 2


def test_validation_masks_are_berts_whatever_training_masks(tmp_path: Path, dataset_folder: Path) -> None:
    def batches(**changes: Any) -> list[Any]:
        write_experiment(tmp_path, **changes)
        experiment = open_experiment(tmp_path)
        dataset = experiment.dataset(dataset_folder)
        preparation = RowPreparation(dataset, experiment.config)
        training = TrainingSteps(dataset, preparation, experiment.config.pretraining_setting)[0].micro_batches[0]
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
    whole, *parts = (TrainingSteps(dataset, preparation, setting, group) for group in
                     (Group(), Group(0, 2), Group(1, 2)))  # fmt: skip
    for step in (0, 20):
        expected = torch.cat([batch["tokens_BN"] for batch in whole[step].micro_batches])
        found = torch.cat([batch["tokens_BN"] for part in parts for batch in part[step].micro_batches])
        assert torch.equal(found, expected)
