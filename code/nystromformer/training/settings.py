"""What a training run needs to know, and what it asks of the task."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]


@dataclass(frozen=True)
class TrainingSettings:
    """One run of the loop."""

    num_steps: int
    steps_per_epoch: int
    steps_per_report: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    max_grad_norm: float | None
    seed: int
    minutes_per_checkpoint: float
    keep_checkpoints: int
    best_metric: str | None = None
    """None: the checkpoints of the last `keep_epochs` epochs stay. Else a validation metric, the higher the better: the
    weights of the best and the last epoch stay, and the last `keep_checkpoints` checkpoints."""
    keep_epochs: int | None = None
    """None: those of all epochs."""


@dataclass(frozen=True)
class Step:
    """This process' part of a step's global batch, cut into micro-batches; all losses add up to the global batch's.

    Every process has as many micro-batches.
    """

    micro_batches: Sequence[Batch]
    tokens: int
    """Valid tokens of the global batch, for the speed that is shown."""

    def pin_memory(self) -> "Step":
        """The step in page-locked memory; torch's DataLoader calls this."""
        return Step([{name: x.pin_memory() for name, x in batch.items()} for batch in self.micro_batches], self.tokens)


class Task(Protocol):
    """What the loop trains. The loop knows no more of it than this."""

    @property
    def model(self) -> nn.Module:
        """What is trained, as `distribute` gives it."""

    def steps(self, first: int, last: int) -> Iterator[Step]:
        """The batches of steps first … last-1; a pure function of the step's number."""

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """A micro-batch's share of the global batch's loss, and its sums (1-D, detached) for `metrics`."""

    def metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Names and values, "loss" among them, from sums added over micro-batches and steps."""

    def validate(self) -> dict[str, float]:
        """Metrics on held-out data, the same data every time; of all processes together."""


@dataclass(frozen=True)
class Device:
    """Where and in which precision a run computes."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    """None: float32 throughout."""

    @property
    def precision(self) -> str:
        """bf16, fp16 or float32: what `mixed_precision` amounts to on this device."""
        names: dict[torch.dtype | None, str] = {None: "float32", torch.bfloat16: "bf16", torch.float16: "fp16"}
        return names[self.autocast_dtype]

    @property
    def needs_loss_scale(self) -> bool:
        """float16 gradients underflow without a scale; bfloat16 and float32 need none."""
        return self.autocast_dtype == torch.float16

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast_dtype, enabled=self.autocast_dtype is not None)

    def __str__(self) -> str:
        precision = (
            "float32" if self.autocast_dtype is None else f"{str(self.autocast_dtype).removeprefix('torch.')} autocast"
        )
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return f"{name}, {precision}"


@dataclass
class Progress:
    """Where a run stands; what a checkpoint remembers beside weights and optimizer."""

    step: int = 0
    sums: list[float] = field(default_factory=list)
    """Metric sums since the last report."""
    reported_at: int = 0
    """The step of the last report."""
    left_out: int = 0
    """Steps since the last report that float16's loss scaler left out; they are not in the sums."""
    tokens: int = 0
    """Tokens seen since the start."""
    best: list[float] = field(default_factory=list)
    """The best epoch so far and its value, where the settings name a best metric."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)
