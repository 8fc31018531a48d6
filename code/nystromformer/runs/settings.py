"""The settings of one run of fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from nystromformer.files.checked_json import STRICT
from nystromformer.runs.objective import ObjectiveSettings

Predict = Literal["best", "last"]
"""An epoch: with the highest main metric on the validation data, or the last one."""
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class RunSettings:
    """What is set for one run, beside config.json."""

    batch_size: Count
    learning_rate: Annotated[float, Field(gt=0)]
    epochs: Count
    """Passes over the training examples; of a run that counts steps, its validations."""
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    warmup: Share
    """Share of all steps."""
    bucket: Count
    """Batches to a pool of examples sorted by length; 1: no sorting."""
    pad_to: Count | None
    """Tokens of every row; None: as many as the longest row of the batch."""
    every: Count | None = None
    """Steps from one validation to the next, in a run that counts steps; None: they come at the end of each pass over
    the training examples.
    """
    objective: ObjectiveSettings | None = None
    """None: the task's own loss."""
    patience: Count | None = None
    """Epochs without a better one that end the run; None: it ends with the last of its epochs."""
    freeze: bool | None = None
    """True: the encoder stays as it is, and the head is fitted at once; the numbers of steps and rates say nothing."""
    __pydantic_config__ = STRICT

    @property
    def num_steps(self) -> int | None:
        """Of a run that counts them."""
        return None if self.every is None else self.epochs * self.every

    def __str__(self) -> str:
        if self.freeze:
            return "frozen encoder"
        text = f"batch {self.batch_size}, learning rate {self.learning_rate:g}, seed {self.seed}"
        return text if self.objective is None else f"{self.objective}, {text}"

    def steps_per_epoch(self, examples: int) -> int:
        """Steps from one validation to the next."""
        return self.every or self.steps_per_pass(examples)

    def steps_per_pass(self, examples: int) -> int:
        """Of all examples once; the last batch may be smaller."""
        return -(-examples // self.batch_size)

    @property
    def combination(self) -> tuple[int, float]:
        """What a grid varies; runs that differ in their seeds alone belong together."""
        return self.batch_size, self.learning_rate
