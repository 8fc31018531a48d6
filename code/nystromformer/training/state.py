"""The settings of one training run, and where it stands."""

from dataclasses import dataclass, field
from typing import Literal, TypedDict


@dataclass(frozen=True)
class TrainingSettings:
    """One run of the loop."""

    num_steps: int
    steps_per_epoch: int
    steps_per_report: int
    learning_rate: float
    warmup_steps: int
    seed: int
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    max_grad_norm: float | None = 1.0
    minutes_per_checkpoint: float = 10.0
    best_metric: str | None = None
    """None: the checkpoints of the last `keep_epochs` epochs stay. Else a validation metric, the higher the better: the
    weights of the best and the last epoch stay, and of a run that is over nothing else."""
    keep_epochs: int | None = None
    """None: those of all epochs."""
    optimizer: Literal["adamw", "stable_adamw"] = "adamw"
    schedule: Literal["linear", "cosine", "wsd"] = "linear"
    decay_steps: int = 0
    """The last steps, in which the rate of schedule "wsd" falls."""


class Validated(TypedDict):
    """The validation at an epoch's end, as plain data."""

    epoch: int
    """From 0."""
    step: int
    metrics: dict[str, float]


@dataclass
class RunState:
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
    history: list[Validated] = field(default_factory=list)
    """The validations of the epochs that are over, in their order: results are made of these, never of the log."""


def best_epoch(history: list[Validated], metric: str | None) -> int | None:
    """The epoch of the highest value, the first of equals; None where no metric is named, or nothing was validated."""
    if metric is None or not history:
        return None
    return max(history, key=lambda one: (one["metrics"][metric], -one["epoch"]))["epoch"]


_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


def dropout_seed(seed: int, step: int, micro_batch: int) -> int:
    """A seed for torch's generators, below 2⁶⁴ and as good as random in its low 32 bits alone.

    A CPU's generator (mt19937) reads no others: of numbers that are packed side by side it would not see the upper
    ones, and masks would come again after a power of two of steps. So each number goes through splitmix64 (Steele, Lea
    and Flood 2014) in turn.

    Args:
        seed: of the run.
        step: the optimizer step, from 0.
        micro_batch: which of the step's, over all processes, from 0.
    """
    state = 0
    for number in (seed, step, micro_batch):
        state = _scattered((state + _GOLDEN + number) % _WORD)
    return state


def _scattered(x: int) -> int:
    """The finaliser of splitmix64: a bijection of 64 bits in which each bit of x decides on all."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
    return x ^ (x >> 31)
