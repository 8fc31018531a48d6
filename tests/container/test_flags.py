"""Whose flags are whose: the launcher's, the script's, and what reaches the script's argv."""

import ast
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import run_glue
import run_pretrain
from nystromformer.command_line import cli
from nystromformer.container.command_line import PassingAll, ScriptFlags, passing_flags_to


def test_values_and_changes() -> None:
    flags = ScriptFlags(("text", "--set", "a=1", "--verify", "--set=b=2", "-x"))
    assert flags.values("--set") == ["a=1", "b=2"]
    assert flags.last("--set") == "b=2"
    assert flags.last("--lr") is None
    assert flags.without("--set").words == ("text", "--verify", "-x")
    assert flags.with_value("--lr", "1").words == (*flags.words, "--lr", "1")
    assert flags.with_value("--set", "x").words == ("text", "--verify", "-x", "--set", "x")


def command() -> typer.Typer:
    """Prints what it is given and passes on."""
    app = cli.application()
    scripts: dict[str, Callable[..., Any]] = {"pretrain": run_pretrain.pretrain, "glue": run_glue.glue}

    def start(
        context: typer.Context, experiment: str, gpus: str = "all", seed: str = "-", command: str = "pretrain"
    ) -> None:
        typer.echo(repr((experiment, gpus, seed, command, context.obj.words)))

    app.command(cls=passing_flags_to(scripts, "pretrain"))(start)
    return app


def output(app: typer.Typer, *args: str) -> str:
    """Of a command that ends well."""
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def refusal(app: typer.Typer, *args: str) -> str:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2, result.output
    return result.output


VALUE = 'model.attn_type={"name": "nystrom", "segments": "padded"}'


@pytest.mark.parametrize(
    ("words", "gpus", "passed"),
    [
        (["folder", "--gpus", "0", "--set", VALUE, "--verify"], "0", {("--set", VALUE), ("--verify",)}),
        ([f"--set={VALUE}", "folder", "--gpus=1", "--set", "x", "--gpus", "2"], "2", {("--set", VALUE, "--set", "x")}),
        (["--set", "--verify", "--gpus", "--set", "folder"], "--set", {("--set", "--verify")}),
        (["--workers", "2", "--gpus", "0", "folder"], "0", {("--workers", "2")}),
    ],
)
def test_any_interleaving_is_split(words: list[str], gpus: str, passed: set[tuple[str, ...]]) -> None:
    folder, *others, flags = ast.literal_eval(output(command(), *words))
    assert (folder, others) == ("folder", [gpus, "-", "pretrain"])
    assert flags in {tuple(itertools.chain(*order)) for order in itertools.permutations(passed)}


def test_a_flag_that_both_know_is_the_commands_own() -> None:
    said = output(command(), "--seed", "1", "folder", "--command", "glue", "--task", "RTE")
    assert said == repr(("folder", "all", "1", "glue", ("--task", "RTE")))


def test_behind_two_dashes_nothing_is_a_flag() -> None:
    assert output(command(), "--gpus", "0", "--", "--set") == repr(("--set", "0", "-", "pretrain", ()))


@pytest.mark.parametrize(
    "args", [["--command", "glue"], ["--command=glue"], ["--command", "pretrain", "--command", "glue"]]
)
def test_the_script_that_an_option_names_parses(args: list[str]) -> None:
    said = output(command(), "folder", *args, "--task", "MRPC")
    assert said == repr(("folder", "all", "-", "glue", ("--task", "MRPC")))


def test_a_command_that_is_unknown_is_the_commands_own_error() -> None:
    assert output(command(), "folder", "--command", "train") == repr(("folder", "all", "-", "train", ()))


def passing_all() -> typer.Typer:
    app = cli.application()

    def preprocess(context: typer.Context, script: str, name: str = "-", follow: bool = False) -> None:
        typer.echo(repr((script, name, follow, context.obj.words)))

    app.command(cls=PassingAll)(preprocess)
    return app


@pytest.mark.parametrize(
    ("words", "name", "follow", "passed"),
    [
        (["wiki", "--workers", "2", "--name", "--x", "--length=512"], "--x", False, ("--workers", "2", "--length=512")),
        (["wiki", "text", "--follow", "-1", "--no", "--name=a"], "a", True, ("text", "-1", "--no")),
        (["--name", "a", "wiki", "--name", "b", "--", "-x"], "b", False, ("-x",)),
    ],
)
def test_every_flag_that_is_not_the_launchers_is_passed_on(
    words: list[str], name: str, follow: bool, passed: tuple[str, ...]
) -> None:
    assert output(passing_all(), *words) == repr(("wiki", name, follow, passed))


def test_a_scripts_flag_before_its_name_is_refused() -> None:
    # Whether the next word is the flag's value or the script, nobody can tell.
    said = refusal(passing_all(), "--length", "512", "wiki")
    assert "--length" in said
    assert "name" in said
