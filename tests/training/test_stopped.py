"""Stopped in any step and resumed, a run of any network ends in the same bits as one that never stopped."""

import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from small import CPU, stop_at, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.log import read_log


def drawing(name: str, **parameters: Any) -> dict[str, Any]:
    """An attention that draws random numbers anew every three steps."""
    return {"model__attn_type": {"name": name, "redraw_steps": 3, **parameters}, "model__num_landmarks": None}


NETWORKS: dict[str, dict[str, Any]] = {
    "rotary": {"model__positions": "rotary"},
    "performer": drawing("performer", num_features=8),
    "reversible reformer": drawing("reformer", chunk_length=8) | {"model__norm": "pre", "model__reversible": True},
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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content: dict[str, torch.Tensor] = read_checkpoint(folder / "model" / "cp-0001.model")["model"]
    return content


def losses(folder: Path) -> list[tuple[str, int, float]]:
    return [(r["type"], r["step"], r["loss"]) for r in read_log(folder / "model" / "log.jsonl") if "loss" in r]


@pytest.mark.parametrize(
    ("network", "stop"),
    [
        ("rotary", 7),
        # Within an interval of features, at the border of two, at an epoch's end, and in the next epoch.
        *(("performer", stop) for stop in (5, 6, 10, 13)),
        pytest.param("reversible reformer", 7, marks=pytest.mark.slow),
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
    expected, resumed = weights(whole(network)), weights(tmp_path)
    assert resumed.keys() == expected.keys()
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)
    assert losses(tmp_path) == losses(whole(network))


def test_layers_draw_features_of_their_own_every_few_steps(whole: Callable[[str], Path]) -> None:
    numbers = {name: value for name, value in weights(whole("performer")).items() if value.numel() == 1}
    draws = [int(value) for name, value in numbers.items() if name.endswith(".draw")]
    assert draws == [6, 6], "step 19 of 20, and every 3 steps new features"
    assert len({int(value) for name, value in numbers.items() if name.endswith(".seed")}) == 2
