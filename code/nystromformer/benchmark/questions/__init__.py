"""What `run_benchmark.py` measures: a module of this folder for each question, whose function of the same name is the
command. Its flags are the fields of a dataclass, made by the functions below.
"""

import ast
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

import typer

from nystromformer.benchmark.findings import Findings
from nystromformer.config.ranges import MOST
from nystromformer.tables import show

ATTENTIONS = (
    "An attention, with parameters after commas, such as nystrom,num_landmarks=16/32 (two, one of each) or "
    "num_landmarks=N/8 (an eighth of the length); may be given several times. Default: "
)
REPEATS = "Measurements of each method at up to 2048 tokens; fewer above."
Out = Annotated[
    Path,
    typer.Option("--out", help="Folder for the results: figures as JSON, tables, and pictures if there are any."),
]
OUT = Path("results/tmp")


def find_commands(name: str) -> list[Callable[..., None]]:
    """The command of a name, or all where it is of none; where help is asked for, their names and descriptions, for
    which no torch is needed.
    """
    names = [each.name for each in pkgutil.iter_modules(__path__)]
    if name in ("", "--help"):
        return [*map(_described, names), again]
    chosen = [] if name == again.__name__ else [name] if name in names else names
    return [*(getattr(importlib.import_module(f"{__name__}.{each}"), each) for each in chosen), again]


def _described(name: str) -> Callable[..., None]:
    def command() -> None:
        """Shown in the help, and never run."""

    tree = ast.parse(Path(__path__[0], f"{name}.py").read_text(encoding="utf-8"))
    (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name)
    command.__name__, command.__doc__ = name, ast.get_docstring(function)
    return command


def again(
    files: Annotated[
        list[Path], typer.Argument(help="Files that a benchmark wrote, such as results/efficiency/efficiency.json.")
    ],
) -> None:
    """Make tables and pictures again from the figures that were measured, beside the files; measures nothing."""
    for path in files:
        show(Findings.read(path).publish(path))


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

    return field(default_factory=lambda: default, metadata={"option": option})


def count(default: int, text: str, least: int = 1, most: int = MOST, name: str = "") -> Any:
    """A flag of a whole number."""
    return flag(default, text, least, most, name)


def threads() -> Any:
    """The flag of PyTorch's threads."""
    return count(2, "CPU threads that PyTorch computes with.", most=1024)


def numbers(default: Sequence[int], text: str, least: int = 1, name: str = "") -> Any:
    """A flag of whole numbers separated by commas: each once, in order."""

    def parse(given: Any) -> Sequence[int]:
        try:
            found = sorted({int(part) for part in given.split(",")}) if isinstance(given, str) else given
        except ValueError:
            raise typer.BadParameter(f"expected numbers separated by commas, found {given[:60]!r}") from None
        if wrong := [each for each in found if not least <= each <= MOST]:
            raise typer.BadParameter(f"expected numbers from {least:,} to {MOST:,}, found {wrong}")
        return tuple(found)

    return flag(tuple(default), text, name=name, parser=parse, metavar="NUMBERS")
