"""The flags that all fine-tuning commands share, and the runs that they ask for.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from nystromformer.command_line import flags
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE, MOST_SEED
from nystromformer.errors import UserError
from nystromformer.runs.call import Call, this_call
from nystromformer.runs.objective import ObjectiveSettings, objective_of
from nystromformer.runs.settings import Predict, RunSettings

T = TypeVar("T", int, float)
_MORE = "More about training"
"""A heading of --help."""


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
    predict: Predict = "best"
    """Whose weights predict."""
    baselines: bool = False
    objective: ObjectiveSettings | None = None
    patience: int | None = None
    freeze: bool = False
    call: Call = Call()  # noqa: RUF009  # immutable
    """For the record."""

    @property
    def runs(self) -> list[RunSettings]:
        if self.freeze:
            return [RunSettings(1, 1.0, 1, 0, 0.0, 1, self.pad_to, freeze=True)]
        return [
            RunSettings(
                *(batch_size, rate, self.epochs, seed, self.warmup, self.bucket, self.pad_to, self.every),
                objective=self.objective,
                patience=self.patience,
            )
            for batch_size, rate, seed in itertools.product(self.batch_sizes, self.learning_rates, self.seeds)
        ]


def numbers(flag: str, text: str, kind: Callable[[str], T], least: T, most: T) -> tuple[T, ...]:
    """The values of a flag that takes a list, such as `8,16,32`.

    Raises:
        UserError: not numbers, one of them twice, or not from `least` to `most`.
    """
    try:
        values: Sequence[T] = [kind(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or len(set(values)) < len(values) or not all(least <= value <= most for value in values):
        bounds = f"{least:,} to {most:,}" if kind is int else f"{least:g} to {most:g}"
        raise UserError(
            f"{flag}: expected a number from {bounds}, or several different ones separated by commas, "
            f"found {text!r:.60}"
        )
    return tuple(values)


if TYPE_CHECKING:
    from nystromformer.tasks.experiment.folder import Experiment


@dataclass(frozen=True)
class FinetuningFlags:
    """Each field is a flag; for `with_flag_groups`."""

    model: flags.ModelFolder = Path("/model")
    batch_size: Annotated[
        str,
        typer.Option("--batch_size", help="Examples of a training step. With several, such as 8,16,32, each is tried."),
    ] = "32"
    lr: Annotated[
        str,
        typer.Option(
            "--lr", help="Peak learning rate. With several, such as 2e-5,3e-5, each is tried with each batch size."
        ),
    ] = "3e-5"
    epoch: Annotated[int, typer.Option("--epoch", min=1, max=MOST, help="Passes over the training examples.")] = 4
    seed: Annotated[
        str,
        typer.Option(
            "--seed",
            help="Random seed of the head's initial weights, the order of examples and dropout. With several, such "
            "as 0,1,2, mean and standard deviation are reported.",
        ),
    ] = "0"
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze",
            help="Keep the pretrained encoder as it is: compute each text's vector once and fit a linear head to them, "
            "in minutes instead of hours. Flags of training, such as --lr, are rejected.",
            rich_help_panel=_MORE,
        ),
    ] = False
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            help="Pretrained weights to start from: the number of an epoch, or last.",
            rich_help_panel=_MORE,
        ),
    ] = "last"
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=8,
            max=MOST,
            help="Tokens of the longest row; longer ones are cut. Default: config.json's max_seq_len; in "
            "run_classify.py the length that suffices for 95 % of the texts, at most max_seq_len.",
            rich_help_panel=_MORE,
        ),
    ] = None
    pad_to: Annotated[
        int | None,
        typer.Option(
            "--pad_to",
            min=8,
            max=MOST,
            help="Pad every row to this many tokens. Default: to the longest of its batch, which is faster.",
            rich_help_panel=_MORE,
        ),
    ] = None
    train_rows: Annotated[
        int | None,
        typer.Option(
            "--train_rows",
            min=1,
            max=MOST,
            help="Train on this many examples only, always the same ones. Default: all.",
            rich_help_panel=_MORE,
        ),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            min=1,
            max=MOST,
            help="Stop a run when this many epochs in a row were no better on the validation data. Default: never.",
            rich_help_panel=_MORE,
        ),
    ] = None
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            metavar="NAME,KEY=VALUE,…",
            help="Metric to train for, which also selects the best epoch and the decision threshold: f_beta,beta=2; "
            "auroc; average_precision; precision_at_recall,target=0.9; recall_at_precision,target=0.9 (two classes); "
            "iou (token classes). Further keys: method (eban, dual or cross_entropy), warm_start (share of all steps "
            "that train with cross-entropy first), stratify=true (give each batch its share of positives).",
            rich_help_panel=_MORE,
        ),
    ] = "cross_entropy"
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also score simple baselines: the most frequent class; for texts tf-idf of words and pairs of words; "
            "on the Long Range Arena the best simple rules of the task.",
            rich_help_panel=_MORE,
        ),
    ] = False
    predict: Annotated[
        Predict,
        typer.Option(
            "--predict",
            help="Weights for predictions: best (the best epoch on the validation data) or last.",
            rich_help_panel=_MORE,
        ),
    ] = "best"
    device: flags.DeviceName = "auto"
    overrides: flags.Overrides = None

    def open(self) -> tuple[Experiment, Sweep]:
        """The experiment, and what to run on it.

        Raises:
            UserError: config.json or a flag is wrong.
        """
        from nystromformer.tasks.experiment.folder import open_experiment

        return open_experiment(self.model, self.overrides or []), self.sweep()

    def sweep(self, epochs: int | None = None) -> Sweep:
        """What to run.

        Args:
            epochs: in the place of the flag's.

        Raises:
            UserError: a flag is wrong.
        """
        if self.freeze:
            unused = ("batch_size", "lr", "epoch", "patience", "seed", "objective")
            if given := [name for name in unused if getattr(self, name) != getattr(FinetuningFlags, name)]:
                raise UserError(
                    f"--freeze: expected no --{given[0]} with it: the head is fitted without steps or chance"
                )
        return Sweep(
            batch_sizes=numbers("--batch_size", self.batch_size, int, 1, MOST),
            learning_rates=numbers("--lr", self.lr, float, LEAST_RATE, MOST_RATE),
            seeds=numbers("--seed", self.seed, int, 0, MOST_SEED),
            epochs=self.epoch if epochs is None else epochs,
            length=self.length,
            pad_to=self.pad_to,
            train_rows=self.train_rows,
            checkpoint=self.checkpoint,
            predict=self.predict,
            baselines=self.baselines,
            objective=objective_of(self.objective),
            patience=self.patience,
            freeze=self.freeze,
            call=this_call(),
        )
