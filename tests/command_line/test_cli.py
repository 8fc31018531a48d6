"""What every command does with its words and its ends."""

import errno
import re
import tomllib
from pathlib import Path
from typing import Annotated

import pytest
import typer
from small import ROOT
from typer.testing import CliRunner

from nystromformer.command_line import cli
from nystromformer.command_line.extras import EXTRAS

ROOM = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"


def flags_alone(overwrite: Annotated[bool, typer.Option("--overwrite")] = False) -> None:
    typer.echo("done")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--overwrite", ""], "expected no further argument after --overwrite, found ''"),
        (["--overwrite", "yes"], "expected no further argument after --overwrite, found 'yes'"),
        (["x" * 300], f"expected no further argument, found '{'x' * 59}… of 302 characters"),
    ],
)
def test_a_word_that_nothing_takes(words: list[str], expected: str) -> None:
    result = CliRunner().invoke(cli.application(flags_alone), words)
    assert result.exit_code == 2
    assert expected in result.output.replace("\n", "")


def command(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    folder: Annotated[Path, typer.Option("--folder")] = Path(),
    number: Annotated[int, typer.Option("--number")] = 0,
    share: Annotated[float, typer.Option("--share")] = 0.5,
    bounded: Annotated[float, typer.Option("--bounded", min=0, max=1)] = 0.5,
) -> None:
    typer.echo("done")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--folder", ""], "expected a value that is not empty, found ''"),
        (["", "b"], "expected a value that is not empty, found ''"),
        (["--share", "nan"], "expected a finite number"),
        (["--share", "-inf"], "expected a finite number"),
        (["--bounded", "nan"], "expected a number from 0 to 1, found 'nan'"),
        (["--bounded", "1e300"], "expected a number from 0 to 1, found '1e300'"),
    ],
)
def test_what_no_flag_may_be(flags: list[str], expected: str) -> None:
    result = CliRunner().invoke(cli.application(command), flags)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split()), result.output
    assert len(result.output) < 6000


def test_what_flags_may_be() -> None:
    flags = ["a", "ü", "--folder", "x", "--number", "7", "--share", "-1e300", "--bounded", "1"]
    assert CliRunner().invoke(cli.application(command), flags).output == "done\n"


class OutOfMemoryError(RuntimeError):
    """Named as PyTorch's."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "error: out of memory: compute"),
        (
            RuntimeError(f"[enforce fail] {ROOM}\nframe 0"),
            f"error: out of memory ([enforce fail] {ROOM}): compute",
        ),
        (
            OutOfMemoryError("CUDA out of memory. Tried"),
            "error: out of memory (CUDA out of memory. Tried): compute",
        ),
        (RuntimeError("could not create a primitive"), "error: out of memory (could not create a primitive): compute"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "error: out of memory: Cannot allocate memory"),
        (OSError(errno.EMFILE, "Too many open files"), "error: opening a file (`ulimit -n`): Too many open files"),
        (OSError(errno.ENOSPC, "No space left on device"), "error: writing: No space left on device"),
    ],
    ids=repr,
)
def test_what_the_machine_lacks_is_one_line(error: Exception, expected: str) -> None:
    def fail() -> None:
        raise error

    result = CliRunner().invoke(cli.application(fail))
    assert result.exit_code == 2
    assert result.output.startswith(expected)
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("text", ["a bug", "could not create a primitive descriptor for a convolution"])
def test_other_errors_are_the_programs_own(text: str) -> None:
    def fail() -> None:
        raise RuntimeError(text)

    assert isinstance(CliRunner().invoke(cli.application(fail)).exception, RuntimeError)


def test_an_interrupt_has_its_own_status(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    assert CliRunner().invoke(cli.application(fail)).exit_code == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_a_compiler_that_fails_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    def command() -> None:
        raise BackendCompilerFailed("inductor", RuntimeError("no C++ compiler\nwith many lines behind it"), None)

    with pytest.raises(typer.Exit) as ended:
        cli.with_clear_errors(command)()
    assert ended.value.exit_code == 2
    said = capsys.readouterr().err
    assert said.startswith("error: model.compile: the layers could not be compiled (BackendCompilerFailed: ")
    assert said.count("\n") == 1
    assert "set model.compile to false" in said


@pytest.mark.parametrize(("module", "extra"), [("matplotlib.figure", "report"), ("sklearn", "train")])
def test_a_package_that_is_not_installed_names_its_extra(module: str, extra: str) -> None:
    def needy() -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    result = CliRunner().invoke(cli.application(needy), [])
    assert result.exit_code == 2
    package = module.partition(".")[0]
    assert (
        f'this needs {package}, which is not installed: `pip install "nystromformer-torch[{extra}]"`' in result.output
    )


def test_a_module_of_our_own_that_is_missing_is_no_mistake_of_the_user() -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'nystromformer.lost'", name="nystromformer.lost")

    assert isinstance(CliRunner().invoke(cli.application(broken), []).exception, ModuleNotFoundError)


def test_extras_have_what_they_are_named_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = {"sklearn": "scikit-learn", "pyarrow": "datasets", "safetensors": "transformers"}
    for module, extra in EXTRAS.items():
        name = distributions.get(module, module)
        assert any(re.split(r"[\[>=]", wanted)[0] == name for wanted in extras[extra]), (module, extra)
