"""What every command does with its words and its ends."""

import errno
import re
import time
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from small import ROOT
from typer.testing import CliRunner

from nystromformer.attention import SoftmaxAttention
from nystromformer.command_line import cli
from nystromformer.command_line.extras import EXTRAS
from nystromformer.config import AttentionConfig
from nystromformer.errors import UserError


class WithoutConfig(SoftmaxAttention):
    pass


class MineConfig(AttentionConfig):
    name: Literal["mine"] = "mine"
    window: int = 8


class Mine(SoftmaxAttention):
    config: MineConfig


class AnotherConfig(AttentionConfig):
    name: Literal["softmax"] = "softmax"


class Another(SoftmaxAttention):
    config: AnotherConfig


def command(
    words: Annotated[list[str] | None, typer.Argument()] = None,
    folder: Annotated[Path, typer.Option("--folder")] = Path(),
    share: Annotated[float, typer.Option("--share")] = 0.5,
    rows: Annotated[int, typer.Option("--rows", min=1, max=10**9, help="Rows.")] = 1,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Keys.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
) -> None:
    typer.echo("done")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--folder", ""], "'--folder': expected a value that is not empty, found ''"),
        (["", "b"], "expected a value that is not empty, found ''"),
        (["--share", "nan"], "'--share': expected a finite number, found nan"),
        (["--share", "-inf"], "'--share': expected a finite number, found -inf"),
        (["--rows", "0"], "Invalid value for '--rows'"),
        (["--share", "0.1", "--folder", "a", "--share=0.2"], "'--share': expected one value, found 2"),
        (["--phases", "2"], "No such option: --phases"),
        (["--attention", "none.py:Mine"], "none.py: no such file"),
        (["--attention", f"{__file__}:None"], "test_cli.py has no class None that derives from Attention"),
        (["--attention", f"{__file__}:WithoutConfig"], "WithoutConfig: expected config: MyConfig"),
        (["--attention", f"{__file__}:Mine,window=8"], "alone, by which its name becomes known"),
        ([f"--attention={__file__}:Another"], "Another: another attention has the name softmax"),
    ],
)
def test_what_no_flag_may_be(flags: list[str], expected: str) -> None:
    result = CliRunner().invoke(cli.application(command), flags)
    assert result.exit_code == 2
    assert expected in " ".join(result.output.split()), result.output


def test_what_flags_may_be_and_how_help_names_them() -> None:
    flags = ["a", "ü", "--folder", "x", "--share", "-1e300", "--set", "a=1", "--set", "a=2", *["--overwrite"] * 2]
    assert CliRunner().invoke(cli.application(command), flags).output == "done\n"
    told = " ".join(CliRunner().invoke(cli.application(command), ["--help"]).output.split())
    assert "--rows <int> Rows. [default: 1; x>=1]" in told
    assert "--set <str> Keys." in told


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (UserError("no such folder"), 2, "error: no such folder\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: writing: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), 2, "error: /a: Permission denied\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            ModuleNotFoundError("none", name="matplotlib.figure"),
            2,
            'error: this needs matplotlib, which is not installed: `pip install "nystromformer-torch[report]"`, '
            'or `pip install -e ".[report]"` in a clone\n',
        ),
        (RuntimeError("a bug"), 1, ""),
        (OSError("without a number"), 1, ""),
        (ModuleNotFoundError("lost", name="nystromformer.a"), 1, ""),
    ],
    ids=repr,
)
def test_a_users_error_is_one_line_and_others_are_the_programs_own(
    error: BaseException, status: int, expected: str
) -> None:
    def fail() -> None:
        raise error

    result = CliRunner().invoke(cli.application(fail))
    assert (result.exit_code, result.output) == (status, expected)
    assert expected or result.exception is error


def test_of_several_processes_the_first_one_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise UserError("no such folder")

    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    for rank, said in (("0", "error: no such folder\n"), ("1", "")):
        monkeypatch.setenv("LOCAL_RANK", rank)
        result = CliRunner().invoke(cli.application(fail))
        assert (result.exit_code, result.output) == (2, said)
    assert waited, "for torchrun, which ends the others when one has ended"


def test_extras_have_what_they_are_named_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = {"sklearn": "scikit-learn", "pyarrow": "datasets", "safetensors": "transformers"}
    for module, extra in EXTRAS.items():
        name = distributions.get(module, module)
        assert any(re.split(r"[\[>=]", wanted)[0] == name for wanted in extras[extra]), (module, extra)
