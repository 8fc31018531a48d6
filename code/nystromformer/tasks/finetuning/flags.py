"""The flags that all fine-tuning commands share, and the runs that they ask for.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nystromformer.command_line import flags
from nystromformer.config.attention_text import attention_overrides
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE, MOST_SEED
from nystromformer.errors import UserError
from nystromformer.runs.settings import MORE, Predict, Settings, SharedSettings
from nystromformer.tasks.experiment.folder import CONTAINER_MODEL, Experiment, open_experiment

T = TypeVar("T", int, float)
PUBLISHED: dict[str, dict[str, Any]] = {
    "linformer": {"projected_length": 256},
    "nystrom": {"num_landmarks": 64},
    "performer": {"num_features": 256},
    "reformer": {"num_hashes": 2},
}
"""Parameters of the paper's Table 3 where they are not this project's defaults."""


@dataclass(frozen=True)
class Flags(SharedSettings):
    """Each field is a flag; for `with_flag_groups`. What is None is as the command's usual settings have it."""

    model: flags.ModelFolder = CONTAINER_MODEL
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch_size",
            help="Examples of a training step. With several, such as 8,16,32, each is tried. Default: 32; where "
            "config.json is the recipe, its batch_size.",
        ),
    ] = None
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr",
            help="Peak learning rate. With several, such as 2e-5,3e-5, each is tried with each batch size. Default: "
            "3e-5; where config.json is the recipe, its learning_rate.",
        ),
    ] = None
    epoch: Annotated[
        int | None,
        typer.Option(
            "--epoch",
            min=1,
            max=MOST,
            help="Passes over the training examples. Default: 4; in run_wikihop.py 15; where config.json is the "
            "recipe, its epoch.",
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
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            help="Pretrained weights to start from: the number of an epoch, or last.",
            rich_help_panel=MORE,
        ),
    ] = "last"
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Also score simple baselines: the most frequent class; for texts tf-idf of words and pairs of words; "
            "on the Long Range Arena the best simple rules of the task.",
            rich_help_panel=MORE,
        ),
    ] = False
    predict: Annotated[
        Predict,
        typer.Option(
            "--predict",
            help="Weights for predictions: best (the best epoch on the validation data) or last.",
            rich_help_panel=MORE,
        ),
    ] = "best"
    device: flags.DeviceName = "auto"
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention of all layers, instead of config.json's: NAME, or NAME,KEY=VALUE,… with its parameters.",
        ),
    ] = None
    overrides: flags.Overrides = None

    def open(self) -> Experiment:
        """The experiment, with what flags override."""
        chosen = [] if self.attention is None else attention_overrides(self.model / "config.json", self.attention)
        return open_experiment(self.model, [*chosen, *(self.overrides or [])])

    def grid(self, usual: Settings = Settings()) -> list[Settings]:  # noqa: B008  # immutable
        """Every batch size with every learning rate and every seed."""
        shared = {field.name: getattr(self, field.name) for field in fields(SharedSettings)}
        if self.freeze:
            unused = ("batch_size", "lr", "epoch", "seed", "objective")
            if given := [name for name in unused if getattr(self, name) != getattr(Flags, name)]:
                raise UserError(
                    f"--freeze: expected no --{given[0]} with it: the head is fitted without steps or chance"
                )
            return [Settings(**shared, batch_size=1, learning_rate=1.0, epochs=1, warmup=0.0, bucket=1)]
        usual = replace(usual, **shared, epochs=self.epoch or usual.epochs)
        batch_sizes = numbers("--batch_size", self.batch_size or str(usual.batch_size), int, 1, MOST)
        rates = numbers("--lr", self.lr or repr(usual.learning_rate), float, LEAST_RATE, MOST_RATE)
        seeds = numbers("--seed", self.seed, int, 0, MOST_SEED)
        return [
            replace(usual, batch_size=batch_size, learning_rate=rate, seed=seed)
            for batch_size, rate, seed in itertools.product(batch_sizes, rates, seeds)
        ]


def numbers(flag: str, text: str, kind: Callable[[str], T], least: T, most: T) -> tuple[T, ...]:
    """The values of a flag that takes a list, such as `8,16,32`."""
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


Conv = Annotated[
    int | None,
    typer.Option(
        "--conv",
        min=0,
        max=MOST,
        help="Taps of the convolution; 0: none. Default: config.json's for its own attention, none for others.",
    ),
]


def open_recipe(
    shared: Flags, conv: int | None, shipped: Path, others: Sequence[str] = ()
) -> tuple[Experiment, Settings]:
    """The experiment whose config.json is a command's recipe, and the settings that it has: outside of a container,
    where --model names none, the shipped one. `others` are overrides before those of the flags; --set comes last.
    """
    is_container = (CONTAINER_MODEL / "config.json").is_file()
    folder = shipped if shared.model == CONTAINER_MODEL and not is_container else shared.model
    chosen = [*others]
    if shared.attention is not None:
        chosen += attention_overrides(folder / "config.json", shared.attention, PUBLISHED)
    if conv is not None:
        chosen.append(f"model.attn_type.conv_kernel_size={conv or 'null'}")
    experiment = open_experiment(folder, [*chosen, *(shared.overrides or [])])
    setting = experiment.config.pretraining_setting
    rate, size = setting.learning_rate, setting.batch_size
    return experiment, Settings(batch_size=size, learning_rate=rate, warmup=setting.warmup, epochs=setting.epoch)
