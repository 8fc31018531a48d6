"""Ways to fine-tune that are timed side by side: the loop's steps over the same examples, and the parts of a step."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.benchmark.models import step_memory
from nystromformer.tasks.finetuning.target import accuracy
from nystromformer.tasks.finetuning.trainable import Finetuning
from nystromformer.training import Step
from nystromformer.training.device import Device
from nystromformer.training.trainable import Batch

PARTS = ("batch", "forward", "backward", "update")


def no_metrics(scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
    """What `Finetuning` asks for and no benchmark looks at."""
    return {"accuracy": accuracy(scores_NC, labels_N)}


@dataclass(frozen=True)
class Way:
    """A model and its steps.

    Args:
        loss: of a batch on the device.
        clip: whether gradients are clipped.
        count: steps of a measurement.
    """

    model: nn.Module
    finetuning: Finetuning
    optimizer: torch.optim.Optimizer
    loss: Callable[[Batch], Tensor]
    device: Device
    count: int
    clip: bool

    def work(self) -> None:
        """All steps, their batches made on the way, as in training."""
        self._train(self.finetuning.steps(0, self.count))

    def parts(self) -> dict[str, float]:
        """Milliseconds of each of PARTS in a step, in a run in which they follow one another."""
        clock = _Clock(self.device)
        self._train(self.finetuning.steps(0, self.count), clock.lap)
        return {part: 1000 * seconds / self.count for part, seconds in clock.seconds.items()}

    def widths(self) -> list[int]:
        """Tokens of a row in each step, padding included."""
        steps = self.finetuning.steps(0, self.count)
        return [int(step.micro_batches[0]["tokens_BN"].shape[1]) for step in steps]

    def memory(self) -> float:
        """MiB at the peak of a step of the longest batch, weights and optimizer included."""
        widths = self.widths()
        longest = list(self.finetuning.steps(0, self.count))[widths.index(max(widths))]
        return step_memory(self.model, lambda: self._train([longest]))

    def _train(self, steps: Iterable[Step], lap: Callable[[str], object] = lambda part: None) -> None:
        for step in steps:
            lap("batch")
            self.optimizer.zero_grad(set_to_none=True)
            for batch in step.micro_batches:
                with self.device.autocast():
                    value = self.loss({key: x.to(self.device.device, non_blocking=True) for key, x in batch.items()})
                lap("forward")
                value.backward()  # type: ignore[no-untyped-call]
                lap("backward")
            if self.clip:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            lap("update")


class _Clock:
    """Seconds of parts that follow one another."""

    def __init__(self, device: Device) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._device = device
        self._since = self._now()

    def lap(self, part: str) -> None:
        now = self._now()
        self.seconds[part] += now - self._since
        self._since = now

    def _now(self) -> float:
        if self._device.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
