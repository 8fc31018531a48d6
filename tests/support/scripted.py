"""A trainable of one weight whose validations are written down, and whose batches may be, too."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from small import CPU
from torch import Tensor, nn

from nystromformer.training import Device, Fitted, Step, TrainingSettings, fit
from nystromformer.training.checkpoint import FORMAT, write_checkpoint
from nystromformer.training.trainable import Batch

SETTINGS = TrainingSettings(
    num_steps=1,
    steps_per_epoch=1,
    steps_per_report=1,
    learning_rate=0.1,
    warmup_steps=0,
    weight_decay=0.0,
    betas=(0.9, 0.999),
    eps=1e-6,
    max_grad_norm=None,
    seed=0,
    minutes_per_checkpoint=1000.0,
)


def settings(num_steps: int, **changes: Any) -> TrainingSettings:
    """One step an epoch, unless changed."""
    return replace(SETTINGS, num_steps=num_steps, **changes)


class Scripted:
    """Each step pulls the weight towards a value of its own.

    Args:
        values: the scores of the epochs' validations, one after another.
        infinite: numbers of steps, from 0, whose batch makes loss and gradients infinite.
        steps_per_epoch: of the run.
    """

    def __init__(self, values: Sequence[float], infinite: Collection[int] = (), steps_per_epoch: int = 1) -> None:
        self.model: nn.Module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.model.weight)  # type: ignore[arg-type]
        self.values = values
        self.infinite = infinite
        self.steps_per_epoch = steps_per_epoch
        self.validated = 0

    def steps(self, first: int, last: int) -> Iterator[Step]:
        self.validated = first // self.steps_per_epoch
        for number in range(first, last):
            value = float("inf") if number in self.infinite else (1 + number % 3) / 64  # small: float16
            yield Step([{"x": torch.full((1, 1), value)}], tokens=1)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = self.model(batch["x"]).float().square().sum()
        return loss, torch.stack([loss.detach(), torch.ones(())])

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return {"loss": sums[0] / sums[1]}

    def validate(self) -> dict[str, float]:
        self.validated += 1
        return {"score": self.values[self.validated - 1]}


def train(scripted: Scripted, wanted: TrainingSettings, folder: Path, device: Device = CPU) -> Fitted:
    """Begin a run, or go on with it."""
    return fit(lambda begins: (scripted, {}), wanted, folder, device, asked={}, title="scripted")


def write_named(path: Path, content: Mapping[str, Any] = {}) -> None:
    """A checkpoint of no run that says what its name says."""
    match = re.fullmatch(r"cp-(\d+)(?:-step-(\d+))?", path.stem)
    assert match, path
    facts = {"format": FORMAT, "epoch": int(match[1]), "step": int(match[2] or match[1])}
    write_checkpoint({**facts, "model": {}, **content}, path)
