"""A run that keeps the weights of its best epoch and the last."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from scripted import Scripted, settings
from small import CPU

from nystromformer.training import Trainer
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.checkpoint import find_checkpoints, find_weights


@pytest.mark.parametrize(
    ("values", "best"), [((0.2, 0.9, 0.5, 0.7), 1), ((0.1, 0.2, 0.3, 0.4), 3), ((0.4, 0.4, 0.4, 0.4), 0)]
)
@pytest.mark.parametrize("stop", [4, 2, 3])
def test_the_best_and_the_last_stay(values: Sequence[float], best: int, stop: int, tmp_path: Path) -> None:
    """Also where the run was stopped after `stop` epochs and resumed."""
    Trainer(Scripted(values), settings(stop, best_metric="score"), tmp_path, CPU, {}).run()
    if stop < 4:
        trainer = Trainer(Scripted(values), settings(4, best_metric="score"), tmp_path, CPU, {})
        newest = find_checkpoints(tmp_path)[-1].path
        trainer.resume(read_checkpoint(newest), newest)
        trainer.run()
    kept = [epoch for epoch, path in find_weights(tmp_path).items() if path.suffix == ".model"]
    assert kept == sorted({best, 3})
    assert [checkpoint.epoch for checkpoint in find_checkpoints(tmp_path)] == [2, 3], "the last two"


def test_without_a_best_metric_every_epoch_stays(tmp_path: Path) -> None:
    Trainer(Scripted((0.2, 0.9, 0.5)), settings(3), tmp_path, CPU, {}).run()
    assert list(find_weights(tmp_path)) == [checkpoint.epoch for checkpoint in find_checkpoints(tmp_path)] == [0, 1, 2]
