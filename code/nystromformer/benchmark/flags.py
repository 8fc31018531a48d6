# ruff: noqa: RUF009  # what is called in the place of a default gives a field
"""Flags of the benchmarks, declared as the fields of their settings. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from nystromformer.config.ranges import MOST

MOST_REPEATS = 10**6
MOST_PROCESSES = 1024
ATTENTIONS = (
    "An attention, with parameters after commas, such as nystrom,num_landmarks=32; may be given several times. "
    "Default: all."
)
REPEATS = "Measurements of each method at up to 2048 tokens; fewer above."
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
    return flag(2, "CPU threads that PyTorch computes with.", 1, MOST_PROCESSES)


@dataclass(frozen=True)
class Results:
    """Where they go, of every benchmark."""

    out: Path = flag(
        Path("results/tmp"), "Folder for the results: figures as JSON, tables, and pictures if there are any."
    )
