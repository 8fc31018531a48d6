"""What `run_benchmark.py` measures: the functions of this folder's modules that `question` makes commands of, and how
they declare their flags, as fields of dataclasses.

The modules import no torch; what they need to measure is imported within the command.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.config.ranges import MOST
from nystromformer.tables import show

ATTENTIONS = (
    "An attention, with parameters after commas, such as nystrom,num_landmarks=16/32 (two, one of each) or "
    "num_landmarks=N/8 (an eighth of the length); may be given several times. Default: all."
)
REPEATS = "Measurements of each method at up to 2048 tokens; fewer above."
_COMMANDS: dict[str, Callable[..., None]] = {}


def question(measure: Callable[..., str]) -> Callable[..., str]:
    """Make a command of a function, which measures, writes its results and returns what to print. Its parameters are
    flags, or dataclasses of flags.
    """
    measure = with_flag_groups(measure)

    @functools.wraps(measure)
    def command(*args: Any, **flags: Any) -> None:
        show(measure(*args, **flags))

    _COMMANDS[measure.__name__] = command
    return measure


def find_commands() -> list[Callable[..., None]]:
    """The commands of all modules, in alphabetical order."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
    return [_COMMANDS[name] for name in sorted(_COMMANDS)]


def flag(
    default: Any, text: str, least: float | None = None, most: float | None = None, name: str = "", **more: Any
) -> Any:
    """A field that is a flag.

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
    """The flag of PyTorch's threads."""
    return count(2, "CPU threads that PyTorch computes with.", most=1024)


def numbers(default: Sequence[int], text: str, least: int = 1, name: str = "") -> Any:
    """A flag of whole numbers separated by commas: each once, in order."""

    def parse(given: Any) -> Sequence[int]:
        if not isinstance(given, str):  # the default
            return tuple(given)
        try:
            found = sorted({int(part) for part in given.split(",")})
        except ValueError:
            raise typer.BadParameter(f"expected numbers separated by commas, found {given[:60]!r}") from None
        if wrong := [each for each in found if not least <= each <= MOST]:
            raise typer.BadParameter(f"expected numbers from {least:,} to {MOST:,}, found {wrong}")
        return tuple(found)

    return flag(tuple(default), text, name=name, parser=parse, metavar="NUMBERS")


def names(allowed: Sequence[str], text: str) -> Any:
    """A flag of names separated by commas: each once, in the order of those that are allowed. Default: all."""

    def parse(given: Any) -> Sequence[str]:
        found = [part.strip() for part in given.split(",")] if isinstance(given, str) else given
        if wrong := [part for part in found if part not in allowed]:
            raise typer.BadParameter(
                f"expected one or more of {','.join(allowed)}, found {', '.join(map(repr, wrong))}"
            )
        return tuple(each for each in allowed if each in found)

    return flag(tuple(allowed), text, parser=parse, metavar="NAMES")


@dataclass(frozen=True)
class Results:
    """Where they go, of every benchmark."""

    out: Path = flag(
        Path("results/tmp"), "Folder for the results: figures as JSON, tables, and pictures if there are any."
    )
