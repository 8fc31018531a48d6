"""The flags that all fine-tuning commands share.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nystromformer.command_line import flags
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE, MOST_SEED
from nystromformer.errors import UserError
from nystromformer.runs.call import this_call
from nystromformer.tasks.finetuning.settings import Sweep, numbers, predict_choice

if TYPE_CHECKING:
    from nystromformer.tasks.experiment.folder import Experiment


@dataclass(frozen=True)
class FinetuningFlags:
    """Each field is a flag; for `with_flag_groups`."""

    model: flags.ModelFolder = Path("/model")
    checkpoint: Annotated[
        str, typer.Option("--checkpoint", help="Pretrained weights to begin with: the number of an epoch, or last.")
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
        typer.Option("--batch_size", help="Examples of a training step. Several, such as 8,16,32: try each of them."),
    ] = "32"
    lr: Annotated[
        str,
        typer.Option("--lr", help="Highest learning rate. Several, such as 2e-5,3e-5: try each with each batch size."),
    ] = "3e-5"
    epoch: Annotated[int, typer.Option("--epoch", min=1, max=MOST, help="Passes over the training examples.")] = 4
    seed: Annotated[
        str,
        typer.Option(
            "--seed",
            help="Random seed of the head's first weights, the examples' order and dropout. Several, such as 0,1,2: "
            "train with each, and report mean and standard deviation.",
        ),
    ] = "0"
    warmup: Annotated[
        float,
        typer.Option("--warmup", min=0, max=1, help="Share of all steps during which the learning rate rises."),
    ] = 0.1
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=8,
            max=MOST,
            help="Tokens of the longest row that the model sees. Default: config.json's max_seq_len.",
        ),
    ] = None
    pad_to: Annotated[
        int | None,
        typer.Option(
            "--pad_to",
            min=8,
            max=MOST,
            help="Pad every row to so many tokens. Default: to the longest of its batch, which is faster.",
        ),
    ] = None
    bucket: Annotated[
        int,
        typer.Option(
            "--bucket",
            min=1,
            max=MOST,
            help="Put examples of similar length into one batch, sorting those of at most so many batches together; "
            "1: do not sort.",
        ),
    ] = 50
    train_rows: Annotated[
        int | None,
        typer.Option(
            "--train_rows", min=1, max=MOST, help="Train on so many examples only, always the same. Default: on all."
        ),
    ] = None
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also score guessers without a network: the most frequent class, a bag of words for texts, and on the "
            "Long Range Arena the strongest simple rules of the task (by scikit-learn).",
        ),
    ] = False
    predict: Annotated[
        str,
        typer.Option(
            "--predict",
            help="Whose weights predict: best (of the epoch best on the validation data) or last (of the last epoch).",
        ),
    ] = "best"
    discard_weights: Annotated[
        bool,
        typer.Option("--discard_weights", help="Remove the trained weights once their predictions are written."),
    ] = False
    device: flags.DeviceName = "auto"
    overrides: flags.Overrides = None

    def open(self) -> tuple[Experiment, Sweep]:
        """The experiment, and what to run on it.

        Raises:
            UserError: config.json or a flag is wrong, or something that a flag needs is not installed.
        """
        from nystromformer.tasks.experiment.folder import open_experiment

        if self.baselines:
            _check_scikit_learn()
        return open_experiment(self.model, self.overrides or []), self.sweep()

    def sweep(self) -> Sweep:
        """What to run.

        Raises:
            UserError: a flag is wrong.
        """
        return Sweep(
            batch_sizes=numbers("--batch_size", self.batch_size, int, 1, MOST),
            learning_rates=numbers("--lr", self.lr, float, LEAST_RATE, MOST_RATE),
            seeds=numbers("--seed", self.seed, int, 0, MOST_SEED),
            epochs=self.epoch,
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
            call=this_call(),
        )


def _check_scikit_learn() -> None:
    if importlib.util.find_spec("sklearn") is None:
        raise UserError(
            "--baselines needs scikit-learn, which is not installed. Run `pip install scikit-learn`, "
            "or leave --baselines out"
        )
