"""Flags that commands share, as Typer reads them and as Python calls them."""

import dataclasses
import inspect
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from nystromformer.command_line import cli
from nystromformer.command_line.flag_groups import Without, with_flag_groups


@dataclass(frozen=True)
class Pace:
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to take.")] = 10
    uphill: Annotated[bool, typer.Option("--uphill", help="Refuse to go down.")] = False
    stops: Annotated[list[str] | None, typer.Option("--stop", help="Where to rest; repeatable.")] = None


@dataclass(frozen=True)
class Load:
    weight: Annotated[float, typer.Option("--weight", help="Kilograms.")]
    bags: Annotated[list[str], typer.Option("--bag", help="By name; repeatable.")] = field(default_factory=list)


QUICK = Pace(steps=3, uphill=True, stops=["inn"])


def seen(command: Any, *words: str) -> list[Any]:
    """What a command is called with for a command line."""
    calls: list[Any] = []
    inner = command(calls.append)
    result = CliRunner().invoke(cli.application(inner), list(words))
    assert result.exit_code == 0, result.output
    return calls


def walk(note: Any) -> Any:
    @with_flag_groups
    def command(
        place: Annotated[str, typer.Argument(help="Where to.")],
        pace: Pace,
        dry: Annotated[bool, typer.Option("--dry", help="Only say so.")] = False,
    ) -> None:
        """Walk somewhere."""
        note((place, pace, dry))

    return command


def test_typer_takes_every_flag_of_the_group_and_the_command_its_value() -> None:
    assert seen(walk, "home") == [("home", Pace(), False)]
    words = ("--dry", "--steps", "4", "home", "--stop", "inn", "--uphill", "--stop", "well")
    assert seen(walk, *words) == [("home", Pace(4, True, ["inn", "well"]), True)]


def test_a_field_may_name_its_flag_in_its_metadata() -> None:
    def option(name: str) -> Any:
        return typer.Option(f"--{name}", min=1)

    @dataclass(frozen=True)
    class Rest:
        long_stops: int = field(default=2, metadata={"option": option})

    def rest(note: Any) -> Any:
        @with_flag_groups
        def command(stops: Rest) -> None:
            note(stops)

        return command

    assert seen(rest) == [Rest(2)]
    assert seen(rest, "--long_stops", "5") == [Rest(5)]


def test_flags_stand_where_the_parameter_stood() -> None:
    command = walk(print)
    signature = inspect.signature(command)
    assert list(signature.parameters) == ["place", "steps", "uphill", "stops", "dry"]
    assert signature.parameters["steps"].default == 10
    assert command.__doc__ == "Walk somewhere."
    help_text = CliRunner().invoke(cli.application(command), ["--help"]).output
    places = [help_text.index(word) for word in ("--steps", "--uphill", "--stop ", "--dry")]
    assert places == sorted(places)
    assert "Steps to take.  [default: 10; x>=1]" in help_text


def test_a_command_has_defaults_of_its_own() -> None:
    def make(note: Any) -> Any:
        @with_flag_groups
        def command(pace: Pace = QUICK) -> None:
            note(pace)

        return command

    assert seen(make) == [QUICK]
    assert seen(make, "--steps", "7") == [dataclasses.replace(QUICK, steps=7)]
    assert inspect.signature(make(print)).parameters["steps"].default == 3


def test_fields_left_out_are_no_flags_and_keep_their_defaults() -> None:
    def make(note: Any) -> Any:
        @with_flag_groups
        def command(pace: Annotated[Pace, Without("uphill", "stops")] = QUICK) -> None:
            note(pace)

        return command

    assert list(inspect.signature(make(print)).parameters) == ["steps"]
    assert seen(make, "--steps", "7") == [dataclasses.replace(QUICK, steps=7)]


def test_several_groups_required_flags_and_factories() -> None:
    def make(note: Any) -> Any:
        @with_flag_groups
        def command(*, pace: Pace, load: Load) -> None:
            note((pace, load))

        return command

    assert seen(make, "--weight", "2.5", "--bag", "a", "--steps", "1") == [(Pace(1), Load(2.5, ["a"]))]
    assert seen(make, "--weight", "1") == [(Pace(), Load(1.0, []))]
    refused = CliRunner().invoke(cli.application(make(print)), [])
    assert refused.exit_code == 2
    assert "Missing option '--weight'" in refused.output


def test_two_flags_of_one_name_are_refused_when_the_command_is_made() -> None:
    def command(pace: Pace, steps: int = 1) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'steps'"):
        with_flag_groups(command)
