"""The settings of a run of fine-tuning, declared once: its record keeps them, and those with an option are flags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from pydantic import Field

from nystromformer.config.ranges import MOST
from nystromformer.files.checked_json import STRICT
from nystromformer.runs.objective import ObjectiveSettings, objective_of

Predict = Literal["best", "last"]
"""An epoch: with the highest main metric on the validation data, or the last one."""
Count = Annotated[int, Field(ge=1, lt=1 << 63)]
Share = Annotated[float, Field(ge=0, le=1)]
MORE = "More about training"
"""A heading of --help."""


@dataclass(frozen=True)
class SharedSettings:
    """What all runs of a command have in common; each field is a flag."""

    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=8,
            max=MOST,
            help="Tokens of the longest row; longer ones are cut. Default: config.json's max_seq_len; in "
            "run_classify.py the length that suffices for 95 % of the texts, at most max_seq_len.",
            rich_help_panel=MORE,
        ),
    ] = None
    pad_to: Annotated[
        int | None,
        typer.Option(
            "--pad_to",
            min=8,
            max=MOST,
            help="Pad every row to this many tokens. Default: to the longest of its batch, which is faster.",
            rich_help_panel=MORE,
        ),
    ] = None
    train_rows: Annotated[
        int | None,
        typer.Option(
            "--train_rows",
            min=1,
            max=MOST,
            help="Train on this many examples only, always the same ones. Default: all.",
            rich_help_panel=MORE,
        ),
    ] = None
    objective: Annotated[
        ObjectiveSettings | None,
        typer.Option(
            "--objective",
            parser=objective_of,
            metavar="NAME,KEY=VALUE,…",
            help="Metric to train for, which also selects the best epoch and the decision threshold: f_beta,beta=2; "
            "auroc; average_precision; precision_at_recall,target=0.9; recall_at_precision,target=0.9 (two "
            "classes). Further keys: method (eban, dual or cross_entropy), warm_start (share of all steps "
            "that train with cross-entropy first), stratify=true (give each batch its share of positives). Default: "
            "cross_entropy.",
            rich_help_panel=MORE,
        ),
    ] = None
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze",
            help="Keep the pretrained encoder as it is: compute each text's vector once and fit a linear head to them, "
            "in minutes instead of hours. Flags of training, such as --lr, are rejected.",
            rich_help_panel=MORE,
        ),
    ] = False


@dataclass(frozen=True)
class Settings(SharedSettings):
    """One run's."""

    __pydantic_config__ = STRICT

    batch_size: Count = 32
    learning_rate: Annotated[float, Field(gt=0)] = 3e-5
    epochs: Count = 4
    """Passes over the training examples; of a run that counts steps, its validations."""
    seed: Annotated[int, Field(ge=0, lt=1 << 64)] = 0
    warmup: Share = 0.1
    """Share of all steps."""
    bucket: Count = 50
    """Batches to a pool of examples sorted by length; 1: no sorting."""
    steps: Count | None = None
    """Of a run that counts them; None: `epochs` passes."""
    every: Count | None = None
    """Steps from one validation to the next, of a run that counts steps; the last step is validated, too."""

    def __str__(self) -> str:
        if self.freeze:
            return "frozen encoder"
        text = f"batch {self.batch_size}, learning rate {self.learning_rate:g}, seed {self.seed}"
        return text if self.objective is None else f"{self.objective}, {text}"

    def steps_per_pass(self, examples: int) -> int:
        """Of all examples once; the last batch may be smaller."""
        return -(-examples // self.batch_size)

    def steps_per_epoch(self, examples: int) -> int:
        """Steps from one validation to the next."""
        return self.every or self.steps_per_pass(examples)

    def num_steps(self, examples: int) -> int:
        """Of the whole run."""
        return self.steps or self.epochs * self.steps_per_pass(examples)

    @property
    def combination(self) -> tuple[int, float]:
        """What a grid varies; runs that differ in their seeds alone belong together."""
        return self.batch_size, self.learning_rate
