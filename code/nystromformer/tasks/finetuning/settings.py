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
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Sweep:
    """All runs of a command: every batch size with every learning rate and every seed."""

    batch_sizes: tuple[int, ...]
    learning_rates: tuple[float, ...]
    """None of them: one is chosen by trial."""
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


def check_alone(baseline: bool, embed: bool, weights: str) -> None:
    """Check what --baseline stands beside.

    Raises:
        UserError: flags of an encoder.
    """
    given = {"--embed": embed, "--predict": weights != "best"}
    if baseline and (found := [flag for flag, is_given in given.items() if is_given]):
        raise UserError(f"--baseline: expected no {found[0]} with it: the baseline has no encoder")


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


if TYPE_CHECKING:
    from nystromformer.tasks.experiment.folder import Experiment


@dataclass(frozen=True)
class FinetuningFlags:
    """Each field is a flag; for `with_flag_groups`."""

    model: flags.ModelFolder = Path("/model")
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Pretrained weights to start from: the number of an epoch, or last.")
    ] = "last"
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            help="Folder of the tokenizer that the checkpoint was pretrained with. Default: the copy beside it.",
        ),
    ] = None
    batch_size: Annotated[
        str,
        typer.Option("--batch_size", help="Examples of a training step. With several, such as 8,16,32, each is tried."),
    ] = "32"
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr",
            help="Peak learning rate. With several, such as 2e-5,3e-5, each is tried with each batch size. Default: "
            "3e-5; in run_classify.py the best of three, chosen by short trials.",
        ),
    ] = None
    epoch: Annotated[int, typer.Option("--epoch", min=1, max=MOST, help="Passes over the training examples.")] = 4
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            min=1,
            max=MOST,
            help="Stop a run when this many epochs in a row were no better on the validation data. Default: never.",
        ),
    ] = None
    seed: Annotated[
        str,
        typer.Option(
            "--seed",
            help="Random seed of the head's initial weights, the order of examples and dropout. With several, such "
            "as 0,1,2, mean and standard deviation are reported.",
        ),
    ] = "0"
    warmup: Annotated[
        float,
        typer.Option("--warmup", min=0, max=1, help="Warm-up: share of all steps in which the learning rate rises."),
    ] = 0.1
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=8,
            max=MOST,
            help="Tokens of the longest row; longer ones are cut. Default: config.json's max_seq_len; in "
            "run_classify.py the length that suffices for 95 % of the texts, at most max_seq_len.",
        ),
    ] = None
    pad_to: Annotated[
        int | None,
        typer.Option(
            "--pad_to",
            min=8,
            max=MOST,
            help="Pad every row to this many tokens. Default: to the longest of its batch, which is faster.",
        ),
    ] = None
    bucket: Annotated[
        int,
        typer.Option(
            "--bucket",
            min=1,
            max=MOST,
            help="Sort the examples of this many batches by length, so that batches have similar lengths; 1: do not "
            "sort.",
        ),
    ] = 50
    train_rows: Annotated[
        int | None,
        typer.Option(
            "--train_rows",
            min=1,
            max=MOST,
            help="Train on this many examples only, always the same ones. Default: all.",
        ),
    ] = None
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also score simple baselines: the most frequent class; for texts a bag of words and tf-idf of words "
            "and pairs of words (which run_classify.py always scores); on the Long Range Arena the best simple rules "
            "of the task.",
        ),
    ] = False
    predict: Annotated[
        str,
        typer.Option(
            "--predict",
            help="Weights for predictions: best (the best epoch on the validation data) or last.",
        ),
    ] = "best"
    discard_weights: Annotated[
        bool,
        typer.Option("--discard_weights", help="Delete the trained weights after the predictions are written."),
    ] = False
    objective: Annotated[
        str,
        typer.Option(
            "--objective",
            help="Metric to train for: cross_entropy; for two classes f_beta, auroc, average_precision, "
            "precision_at_recall or recall_at_precision; for token classes iou. It also selects the best "
            "epoch and the decision threshold.",
        ),
    ] = "cross_entropy"
    objective_method: Annotated[
        str | None,
        typer.Option(
            "--objective_method",
            help="eban (bounds and multipliers), dual (soft counts, added to cross-entropy), or cross_entropy (train "
            "with it, and only select by the metric). Default: eban where it applies, else dual.",
        ),
    ] = None
    beta: Annotated[
        float | None, typer.Option("--beta", help="With f_beta: weight of recall relative to precision. Default: 1.")
    ] = None
    target: Annotated[
        float | None,
        typer.Option("--target", help="Required recall (precision_at_recall) or precision (recall_at_precision)."),
    ] = None
    warm_start: Annotated[
        float | None,
        typer.Option(
            "--warm_start",
            help="With --objective: share of all steps that train with cross-entropy first. Default: 0.2.",
        ),
    ] = None
    stratify: Annotated[
        bool, typer.Option("--stratify", help="With --objective: give each batch its share of positives.")
    ] = False
    freeze: Annotated[
        bool,
        typer.Option(
            "--freeze",
            help="Keep the pretrained encoder as it is: compute each text's vector once and fit a linear head to them, "
            "in minutes instead of hours. Flags of training, such as --lr, are rejected.",
        ),
    ] = False
    device: flags.DeviceName = "auto"
    overrides: flags.Overrides = None

    def open(self, tries_rates: bool = False) -> tuple[Experiment, Sweep]:
        """The experiment, and what to run on it.

        Args:
            tries_rates: as of `sweep`.

        Raises:
            UserError: config.json or a flag is wrong.
        """
        from nystromformer.tasks.experiment.folder import open_experiment

        return open_experiment(self.model, self.overrides or []), self.sweep(tries_rates=tries_rates)

    def sweep(self, epochs: int | None = None, tries_rates: bool = False) -> Sweep:
        """What to run.

        Args:
            epochs: in the place of the flag's.
            tries_rates: without --lr a learning rate is chosen by trial.

        Raises:
            UserError: a flag is wrong.
        """
        if self.freeze:
            self._check_frozen()
        batch_sizes = numbers("--batch_size", self.batch_size, int, 1, MOST)
        tries = tries_rates and self.lr is None
        if tries and len(batch_sizes) > 1:
            raise UserError(
                f"--batch_size {self.batch_size}: expected --lr with several batch sizes; without --lr a learning rate "
                "is chosen for a single batch size"
            )
        return Sweep(
            batch_sizes=batch_sizes,
            learning_rates=() if tries else numbers("--lr", self.lr or "3e-5", float, LEAST_RATE, MOST_RATE),
            seeds=numbers("--seed", self.seed, int, 0, MOST_SEED),
            epochs=self.epoch if epochs is None else epochs,
            warmup=self.warmup,
            bucket=self.bucket,
            length=self.length,
            pad_to=self.pad_to,
            train_rows=self.train_rows,
            checkpoint=self.checkpoint,
            tokenizer=self.tokenizer,
            predict=predict_choice(self.predict),
            discard_weights=self.discard_weights,
            baselines=self.baselines,
            objective=objective_of(
                self.objective, self.objective_method, self.beta, self.target, self.warm_start, self.stratify
            ),
            patience=self.patience,
            freeze=self.freeze,
            call=this_call(),
        )

    def _check_frozen(self) -> None:
        """Check what --freeze stands beside.

        Raises:
            UserError: a flag that a head without training has no use for.
        """
        unused = ("batch_size", "lr", "epoch", "patience", "seed", "warmup", "bucket", "objective", "warm_start")
        given = [name for name in (*unused, "stratify") if getattr(self, name) != getattr(FinetuningFlags, name)]
        if given:
            raise UserError(
                f"--freeze: expected no --{given[0]} with it: the head is fitted directly, without steps, learning "
                "rates or random numbers"
            )
