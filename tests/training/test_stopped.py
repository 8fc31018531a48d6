"""Stopped in any step and resumed, a run of any network ends in the same bits as one that never stopped."""

import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_same_weights, records, weights
from small import CPU, stop_at, write_experiment

from nystromformer.tasks.pretraining.pretrain import pretrain


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
    assert_same_weights(tmp_path, whole(network), "cp-0001.model")
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
