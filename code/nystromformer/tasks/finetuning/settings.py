"""The settings of fine-tuning runs: those of one, and the lists that several are made of."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from nystromformer.errors import UserError
from nystromformer.kept import STRICT

T = TypeVar("T", int, float)
Predict = Literal["best", "last"]
"""An epoch: with the highest main metric on the validation data, or the last one."""
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class RunSettings:
    """What is set for one run, beside config.json."""

    batch_size: int
    learning_rate: float
    epochs: int
    """Passes over the training examples; of a run that counts steps, its validations."""
    seed: int
    warmup: float
    """Share of all steps."""
    bucket: int
    """Batches to a pool of examples sorted by length; 1: no sorting."""
    pad_to: int | None
    """Tokens of every row; None: as many as the longest row of the batch."""
    every: int | None = None
    """Steps from one validation to the next, in a run that counts steps; None: they come at the end of each pass over
    the training examples.
    """
    __pydantic_config__ = STRICT

    @property
    def is_possible(self) -> bool:
        """Whether the values are within what the flags take."""
        optional = (each for each in (self.pad_to, self.every) if each is not None)
        counts = (self.batch_size, self.epochs, self.bucket, *optional)
        return (
            all(1 <= count < 1 << 63 for count in counts)
            and 0 <= self.seed < 1 << 64
            and 0 < self.learning_rate < float("inf")
            and 0 <= self.warmup <= 1
        )

    def __str__(self) -> str:
        return f"batch {self.batch_size}, learning rate {self.learning_rate:g}, seed {self.seed}"

    def steps_per_epoch(self, examples: int) -> int:
        """Steps from one validation to the next."""
        return self.every or self.steps_per_pass(examples)

    def steps_per_pass(self, examples: int) -> int:
        """Of all examples once; the last batch may be smaller."""
        return -(-examples // self.batch_size)

    def as_data(self) -> dict[str, Any]:
        """As plain data, which is for passes over the data what it was before runs could count steps."""
        return {key: value for key, value in asdict(self).items() if key != "every" or value is not None}

    @property
    def combination(self) -> tuple[int, float]:
        """What a grid varies; runs that differ in their seeds alone belong together."""
        return self.batch_size, self.learning_rate


@dataclass(frozen=True)
class Sweep:
    """All runs of a command: every batch size with every learning rate and every seed."""

    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    epochs: int
    every: int | None = None
    """As in RunSettings, as are the others of its names."""
    warmup: float = 0.1
    bucket: int = 50
    length: int | None = None
    """Tokens of the longest row; None: the model's."""
    pad_to: int | None = None
    train_rows: int | None = None
    """Train on so many rows, drawn once and for all; None: on all."""
    checkpoint: str = "last"
    tokenizer: Path | None = None
    predict: Predict = "best"
    """Whose weights predict."""
    discard_weights: bool = False
    """Remove each run's weights once its predictions are written."""
    baselines: bool = False
    command: str = ""
    """The command line, for the record."""

    @property
    def half_of_steps(self) -> int:
        """About half of the steps of runs that count them, up to a validation."""
        assert self.every is not None
        return max(1, self.epochs // 2) * self.every

    @property
    def runs(self) -> list[RunSettings]:
        return [
            RunSettings(batch_size, rate, self.epochs, seed, self.warmup, self.bucket, self.pad_to, self.every)
            for batch_size, rate, seed in itertools.product(self.batch_sizes, self.learning_rates, self.seeds)
        ]


def predict_choice(text: str) -> Predict:
    """What `--predict` names.

    Raises:
        UserError: neither best nor last.
    """
    if text == "best":
        return "best"
    if text == "last":
        return "last"
    raise UserError(f"--predict {text}: expected best (the best epoch on the validation data) or last")


def numbers(flag: str, text: str, kind: Callable[[str], T], least: T, most: T) -> tuple[T, ...]:
    """The values of a flag that takes a list, such as `8,16,32`.

    Raises:
        UserError: not numbers, one of them twice, or not from `least` to `most`.
    """
    try:
        values: Sequence[T] = [kind(part) for part in text.split(",")]
    except ValueError:
        values = []
    possible = [least <= value <= most for value in values]
    twice = [str(value) for value in dict.fromkeys(values) if list(values).count(value) > 1]
    if twice:
        raise UserError(f"{flag} {text}: expected different numbers, found {', '.join(twice)} more than once")
    if not values or not all(possible):
        bounds = f"{least:,} to {most:,}" if kind is int else f"{least:g} to {most:g}"
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
        raise UserError(
            f"{flag}: expected a number from {bounds}, or several different ones separated by commas, found {shown!r}"
        )
    return tuple(values)
