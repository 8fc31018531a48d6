"""The flags of tasks whose recipe is an experiment's config.json, and the experiment that they change.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nystromformer.command_line.flag_groups import Without
from nystromformer.config import peek_config
from nystromformer.config.attention_text import parse_attention
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE
from nystromformer.errors import UserError
from nystromformer.tasks.experiment.folder import CONTAINER_MODEL
from nystromformer.tasks.finetuning.settings import FinetuningFlags, Sweep, numbers

if TYPE_CHECKING:
    from nystromformer.config.schema import PretrainingConfig

PUBLISHED: dict[str, dict[str, Any]] = {
    "linformer": {"projected_length": 256},
    "nystrom": {"num_landmarks": 64},
    "performer": {"num_features": 256},
    "reformer": {"num_hashes": 2},
}
"""Parameters of the paper's Table 3 where they are not this project's defaults."""


@dataclass(frozen=True)
class RecipeFlags:
    """What is given in the place of config.json's."""

    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="Experiment folder: config.json, which is the recipe, and runs in model/. Default: /model in a "
            "container, else the shipped experiment of the task.",
        ),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention, instead of config.json's: NAME, or NAME,KEY=VALUE,… with its parameters.",
        ),
    ] = None
    conv: Annotated[
        int | None,
        typer.Option(
            "--conv",
            min=0,
            max=MOST,
            help="Taps of the convolution; 0: none. Default: config.json's for its own attention, none for others.",
        ),
    ] = None
    batch_size: Annotated[
        str | None,
        typer.Option(
            "--batch_size", help="Examples of a training step; with several, each is tried. Default: config.json's."
        ),
    ] = None
    lr: Annotated[
        str | None,
        typer.Option("--lr", help="Peak learning rate; with several, each is tried. Default: config.json's."),
    ] = None
    warmup: Annotated[
        float | None,
        typer.Option(
            "--warmup",
            min=0,
            max=1,
            help="Warm-up: share of all steps in which the learning rate rises. Default: config.json's.",
        ),
    ] = None

    def folder(self, usual: Path) -> Path:
        """The experiment's folder.

        Args:
            usual: the one outside of a container, where none is named.
        """
        return self.model or (CONTAINER_MODEL if (CONTAINER_MODEL / "config.json").is_file() else usual)

    def overrides(self, config_file: Path, given: Sequence[str]) -> list[str]:
        """What to write over a config.json so that its encoder has the attention and the convolution.

        Args:
            given: further overrides, which come last, such as parameters of the attention.

        Raises:
            UserError: there is no such attention, or config.json has several and --conv is given.
        """
        section = peek_config(config_file).get("model")
        own = section.get("attn_type") if isinstance(section, dict) else None
        chosen: Any = own
        if self.attention is not None:
            attention, parameters = parse_attention(self.attention)
            is_own = isinstance(own, dict) and own.get("name") == attention.name
            chosen = own if is_own else {"name": attention.name} | PUBLISHED.get(attention.name, {})
            chosen = {**chosen, **parameters}
        if self.conv is not None:
            if not isinstance(chosen, dict):
                raise UserError(
                    f"--conv {self.conv}: expected --attention with it, or an attn_type that is an object in "
                    f"{config_file}"
                )
            chosen = {key: value for key, value in chosen.items() if key != "conv_kernel_size"}
            chosen |= {"conv_kernel_size": self.conv} if self.conv else {}
        return [*([] if chosen == own else [f"model.attn_type={json.dumps(chosen)}"]), *given]

    def sweep(self, others: Sweep, setting: PretrainingConfig) -> Sweep:
        """The runs of a command: as config.json says, except for the flags that are given.

        Args:
            others: what else is set.
            setting: config.json's.

        Raises:
            UserError: a value that is none.
        """
        return replace(
            others,
            batch_sizes=numbers("--batch_size", self.batch_size or str(setting.batch_size), int, 1, MOST),
            learning_rates=numbers("--lr", self.lr or repr(setting.learning_rate), float, LEAST_RATE, MOST_RATE),
            warmup=setting.warmup if self.warmup is None else self.warmup,
        )


BESIDE_RECIPE = ("model", "checkpoint", "batch_size", "lr", "epoch", "freeze")
"""Fields of FinetuningFlags that RecipeFlags has, or that have no use beside it."""
FlagsBesideRecipe = Annotated[FinetuningFlags, Without(*BESIDE_RECIPE)]
"""Of what RecipeFlags has not."""


def check_name(flag: str, name: str, names: Iterable[str]) -> None:
    """Check that a flag names one of several things.

    Raises:
        UserError: it does not; lists them.
    """
    if name not in names:
        raise UserError(f"{flag} {name}: expected one of {', '.join(names)}")
