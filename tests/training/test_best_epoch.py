"""A run that keeps the weights of its best epoch and the last."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from small import CPU
from torch import Tensor, nn

from nystromformer.training import Step, Trainer, TrainingSettings
from nystromformer.training.checkpoint import find_checkpoints, find_weights, read_checkpoint
from nystromformer.training.settings import Batch


class Scripted:
    """A task whose validations are written down: one a step."""

    def __init__(self, values: Sequence[float]) -> None:
        self.model: nn.Module = nn.Linear(1, 1)
        self.values = values
        self.validated = 0

    def steps(self, first: int, last: int) -> Iterator[Step]:
        self.validated = first
        yield from (Step([{"x": torch.ones(1, 1)}], tokens=1) for _ in range(first, last))

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = self.model(batch["x"]).square().sum()
        return loss, loss.detach()[None]

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": sums[0]}

    def validate(self) -> dict[str, float]:
        self.validated += 1
        return {"score": self.values[self.validated - 1]}


def settings(epochs: int, best_metric: str | None = "score") -> TrainingSettings:
    return TrainingSettings(epochs, 1, 1, 0.1, 0, 0.0, (0.9, 0.999), 1e-6, None, 0, 1000.0, 2, best_metric)


@pytest.mark.parametrize(
    ("values", "best"), [((0.2, 0.9, 0.5, 0.7), 1), ((0.1, 0.2, 0.3, 0.4), 3), ((0.4, 0.4, 0.4, 0.4), 0)]
)
@pytest.mark.parametrize("stop", [4, 2, 3])
def test_the_best_and_the_last_stay(values: Sequence[float], best: int, stop: int, tmp_path: Path) -> None:
    """Also where the run was stopped after `stop` epochs and resumed."""
    task = Scripted(values)
    Trainer(task, settings(stop), tmp_path, CPU, {}).run()
    if stop < 4:
        again = Scripted(values)
        trainer = Trainer(again, settings(4), tmp_path, CPU, {})
        newest = find_checkpoints(tmp_path)[-1].path
        trainer.resume(read_checkpoint(newest), newest)
        trainer.run()
    kept = [epoch for epoch, path in find_weights(tmp_path).items() if path.suffix == ".model"]
    assert kept == sorted({best, 3})
    assert [found.epoch for found in find_checkpoints(tmp_path)] == [2, 3], "the last two"


def test_without_a_best_metric_every_epoch_stays(tmp_path: Path) -> None:
    Trainer(Scripted((0.2, 0.9, 0.5)), settings(3, None), tmp_path, CPU, {}).run()
    assert list(find_weights(tmp_path)) == [found.epoch for found in find_checkpoints(tmp_path)] == [0, 1, 2]
