# ruff: noqa: RUF009  # what is called in the place of a default gives a field
"""Flags of the benchmarks, declared as the fields of their settings. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from nystromformer.config.ranges import MOST

ATTENTIONS = (
    "An attention, with parameters after commas, such as nystrom,num_landmarks=16/32 (two, one of each) or "
    "num_landmarks=N/8 (an eighth of the length); may be given several times. Default: all."
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


def count(default: int, text: str, least: int = 1, most: int = MOST, name: str = "") -> Any:
    """A flag of a whole number."""
    return flag(default, text, least, most, name)


def threads() -> Any:
    """The flag of the threads that PyTorch computes with."""
    return count(2, "CPU threads that PyTorch computes with.", most=1024)


def numbers(default: Sequence[int], text: str, least: int = 1, name: str = "") -> Any:
    """A flag of whole numbers separated by commas: each once, in order."""

    def parse(given: str) -> Sequence[int]:
        try:
            found = sorted({int(part) for part in given.split(",")})
        except ValueError:
            raise typer.BadParameter(f"expected numbers separated by commas, found {given[:60]!r}") from None
        if wrong := [each for each in found if not least <= each <= MOST]:
            raise typer.BadParameter(f"expected numbers from {least:,} to {MOST:,}, found {wrong}")
        return tuple(found)

    return _several(default, text, parse, name, "NUMBERS")


def names(allowed: Sequence[str], text: str) -> Any:
    """A flag of names separated by commas: each once, in the order of those that are allowed. Default: all."""

    def parse(given: str) -> Sequence[str]:
        found = [part.strip() for part in given.split(",")]
        if wrong := [part for part in found if part not in allowed]:
            raise typer.BadParameter(
                f"expected one or more of {','.join(allowed)}, found {', '.join(map(repr, wrong))}"
            )
        return tuple(each for each in allowed if each in found)

    return _several(allowed, text, parse, "", "NAMES")


def _several(default: Sequence[Any], text: str, parse: Callable[[str], Any], name: str, metavar: str) -> Any:
    # The parser gets the default, too.
    parser: Callable[[Any], Any] = lambda given: parse(given) if isinstance(given, str) else given  # noqa: E731
    return flag(tuple(default), text, name=name, parser=parser, metavar=metavar)


@dataclass(frozen=True)
class Results:
    """Where they go, of every benchmark."""

    out: Path = flag(
        Path("results/tmp"), "Folder for the results: figures as JSON, tables, and pictures if there are any."
    )
