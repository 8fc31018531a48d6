"""The settings of the runs of one command."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nystromformer.errors import UserError
from nystromformer.runs.call import Call
from nystromformer.runs.settings import Predict, RunSettings

T = TypeVar("T", int, float)
_LONGEST_SHOWN = 60


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
    call: Call = Call()  # noqa: RUF009  # immutable
    """For the record."""

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
