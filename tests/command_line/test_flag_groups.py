"""Flags that commands share, as Typer reads them and as Python calls them."""

import inspect
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups


def _option(name: str) -> Any:
    return typer.Option(f"--{name}", min=1)


@dataclass(frozen=True)
class Pace:
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to take.")] = 10
    uphill: Annotated[bool, typer.Option("--uphill", help="Refuse to go down.")] = False
    stops: Annotated[list[str] | None, typer.Option("--stop", help="Where to rest; repeatable.")] = None


@dataclass(frozen=True)
class Load:
    weight: Annotated[float, typer.Option("--weight", help="Kilograms.")]
    bags: Annotated[list[str], typer.Option("--bag", help="By name; repeatable.")] = field(default_factory=list)
    people: int = field(default=2, metadata={"option": _option})


QUICK = Pace(steps=3, uphill=True, stops=["inn"])


@with_flag_groups
def walk(
    place: Annotated[str, typer.Argument(help="Where to.")],
    pace: Pace,
    dry: Annotated[bool, typer.Option("--dry", help="Only say so.")] = False,
) -> None:
    """Walk somewhere."""
    typer.echo(repr((place, pace, dry)))


@with_flag_groups
def carry(*, pace: Annotated[Pace, Without("uphill", "stops")] = QUICK, load: Load) -> None:
    typer.echo(repr((pace, load)))


@pytest.mark.parametrize(
    ("command", "words", "called"),
    [
        (walk, "home", ("home", Pace(), False)),
        (
            walk,
            "--dry --steps 4 home --stop inn --uphill --stop well",
            ("home", Pace(4, True, ["inn", "well"]), True),
        ),
        (carry, "--weight 1", (QUICK, Load(1.0, []))),
        (
            carry,
            "--weight 2.5 --bag a --steps 7 --people 5",
            (replace(QUICK, steps=7), Load(2.5, ["a"], 5)),
        ),
    ],
)
def test_a_command_is_called_with_what_its_flags_make(command: Any, words: str, called: tuple[Any, ...]) -> None:
    result = CliRunner().invoke(cli.application(command), words.split())
    assert result.output == f"{called!r}\n"


def test_flags_stand_where_the_parameter_stood() -> None:
    signature = inspect.signature(walk)
    assert list(signature.parameters) == ["place", "steps", "uphill", "stops", "dry"]
    assert signature.parameters["steps"].default == 10
    assert list(inspect.signature(carry).parameters) == ["steps", "weight", "bags", "people"]
    assert inspect.signature(carry).parameters["steps"].default == 3
    assert walk.__doc__ == "Walk somewhere."
    help_text = CliRunner().invoke(cli.application(walk), ["--help"]).output
    places = [help_text.index(word) for word in ("--steps", "--uphill", "--stop ", "--dry")]
    assert places == sorted(places)
    assert "Steps to take.  [default: 10; x>=1]" in help_text


def test_a_flag_without_default_is_required_and_two_of_one_name_are_refused() -> None:
    refused = CliRunner().invoke(cli.application(carry), [])
    assert refused.exit_code == 2
    assert "Missing option '--weight'" in refused.output

    def command(pace: Pace, steps: int = 1) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'steps'"):
        with_flag_groups(command)
