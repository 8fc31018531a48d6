# ruff: noqa: RUF009  # what is called in the place of a default gives a field
"""Flags of the benchmarks, declared as the fields of their settings. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import typer

from nystromformer.config.ranges import MOST, MOST_LAYERS
from nystromformer.errors import UserError
from nystromformer.resources import most_processes

HEAD_DIM = LANDMARKS = 64
"""Of the models whose steps are measured."""
MOST_REPEATS = 10**6
ATTENTIONS = (
    "An attention, with parameters after commas, such as nystrom,num_landmarks=32; may be given several times. "
    "Default: all."
)
REPEATS = "Measurements of each method at up to 2048 tokens; fewer above."
BATCHES = "Steps of each measurement in which batches differ in length."
CHECKPOINT = "Which weights: last, or an epoch's number."


def flag(
    default: Any, text: str, least: float | None = None, most: float | None = None, name: str = "", **more: Any
) -> Any:
    """A field that is a flag, for `with_flag_groups`.

    Args:
        text: its help.
        name: without its dashes; empty: the field's.
        more: for `typer.Option`.
    """

    def option(field_name: str) -> Any:
        return typer.Option(f"--{name or field_name}", min=least, max=most, help=text, **more)

    if isinstance(default, list):
        return field(default_factory=list, metadata={"option": option})
    return field(default=default, metadata={"option": option})


def numbers(
    default: Sequence[float], text: str, least: float = 1, most: float = MOST, name: str = "", kind: type = int
) -> Any:
    """A flag of numbers separated by commas: each once, in order."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):  # the default
            return given
        try:
            found = sorted({kind(part) for part in given.split(",")})
        except ValueError:
            raise typer.BadParameter(f"expected numbers separated by commas, found {given[:60]!r}") from None
        if wrong := [each for each in found if not least <= each <= most]:
            form = "," if kind is int else "g"
            raise typer.BadParameter(f"expected numbers from {least:{form}} to {most:{form}}, found {wrong}")
        return tuple(found)

    return flag(tuple(default), text, name=name, parser=parse, metavar="NUMBERS")


def names(allowed: Sequence[str], text: str) -> Any:
    """A flag of names separated by commas: each once, in the order of those that are allowed. Default: all."""

    def parse(given: Any) -> Any:
        if not isinstance(given, str):
            return given
        found = [part.strip() for part in given.split(",")]
        if wrong := [part for part in found if part not in allowed]:
            raise typer.BadParameter(
                f"expected one or more of {','.join(allowed)}, found {', '.join(map(repr, wrong))}"
            )
        return tuple(each for each in allowed if each in found)

    return flag(tuple(allowed), text, parser=parse, metavar="NAMES")


def threads() -> Any:
    """The flag of the threads that PyTorch computes with."""
    return flag(2, "CPU threads that PyTorch computes with.", 1, most_processes())


@dataclass(frozen=True)
class Results:
    """Where they go, of every benchmark."""

    out: Path = flag(
        Path("results/tmp"), "Folder for the results: figures as JSON, tables, and pictures if there are any."
    )


@dataclass(frozen=True)
class BertSmall:
    """Sizes of the model whose steps are measured; by default the paper's BERT-small with RoBERTa's vocabulary.

    Raises:
        UserError: a width that heads do not divide.
    """

    threads: int = threads()
    num_layers: int = flag(4, "Layers of the model.", 1, MOST_LAYERS, name="layers")
    width: int = flag(512, f"Width of the model: {HEAD_DIM} for each attention head.", HEAD_DIM, HEAD_DIM * 10**5)
    vocab_size: int = flag(50265, "Tokens of the vocabulary.", 300, MOST)
    precision: Literal["float32", "bf16", "fp16"] = flag(
        "float32", "What models compute in: float32, or bf16 or fp16 under autocast."
    )

    def __post_init__(self) -> None:
        if self.width % HEAD_DIM:
            raise UserError(f"--width: expected a multiple of the heads' {HEAD_DIM}, found {self.width}")

    @property
    def mixed_precision(self) -> bool | str:
        """As of a config.json."""
        return False if self.precision == "float32" else self.precision
