"""The scripts that the launcher runs, and their flags as words: checked by the script's own parser, and mounted."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from nystromformer.command_line import cli
from nystromformer.container.options import LaunchOptions, Mount
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT
from nystromformer.tasks.declaration import Data, declared_tasks

CODE_FOLDER = PROJECT / "code"


@dataclass(frozen=True)
class Script:
    """A script that runs on an experiment folder."""

    command: str
    file: str
    does: str
    """For people who choose a command."""
    data: Data
    shares_gpus: bool = True
    """Whether several processes share its work (torchrun)."""


_PRETRAINING = Data("data_folder", "--dataset", "data-preprocessing/{length}-roberta")
SCRIPTS = {
    script.command: script
    for script in (
        Script("pretrain", "run_pretrain.py", "Pretrain an experiment's model", _PRETRAINING),
        Script("validate", "run_validation.py", "Measure a pretrained model on held-out text", _PRETRAINING, False),
        *(Script(task.command, task.file, task.does, task.data) for task in declared_tasks()),
    )
}


def function_of(file: str) -> Callable[..., Any]:
    """What a script runs, from its flags: `run_NAME.py` has a function `NAME`."""
    module = Path(file).stem
    function: Callable[..., Any] = getattr(importlib.import_module(module), module.removeprefix("run_"))
    return function


def check_words(file: str, words: Sequence[str]) -> None:
    """Have a script's parser say what is wrong with its words, if anything, before there is a container."""
    typer.main.get_command(cli.application(function_of(file))).make_context(file, list(words))


def flags_behind(context: typer.Context, first: str) -> list[str]:
    """The words of a command that are the script's: those behind its first argument, each value a word of its own.

    Raises:
        UserError: a flag stands before the argument; whether the next word is its value, nobody can tell.
    """
    if first.startswith("-"):
        raise UserError(f"{first}: expected the folder before the script's flags")
    split = [word.split("=", 1) if word.startswith("--") else [word] for word in context.args]
    return [word for words in split for word in words]


def values(words: Sequence[str], flag: str) -> list[str]:
    """All values of a flag."""
    return [value for word, value in pairwise(words) if word == flag]


def take(words: list[str], flag: str) -> str | None:
    """Remove a flag and its value from the words; returns the value, of several the last."""
    value = None
    while flag in words[:-1]:
        place = words.index(flag)
        value = words[place + 1]
        del words[place : place + 2]
    return value


def mount_flag(words: list[str], flag: str, mounts: list[Mount], if_there: bool = False, writes: bool = False) -> None:
    """Mount what a flag names where it is on this machine, and have the flag say that.

    Args:
        if_there: it may also name something else than a path.
        writes: it is made by the script, in the folder that is mounted.
    """
    value = take(words, flag)
    if value is None:
        return
    if "://" not in value and (not if_there or os.path.exists(value)):
        value = os.path.abspath(value)
        path = Path(value).parent if writes else Path(value)
        mounts.append(Mount(path, str(path), read_only=not writes))
    words += [flag, value]


def merged(mounts: Sequence[Mount], options: LaunchOptions) -> list[Mount]:
    """The mounts with the code's and those of --mount, one for each target: what is written can also be read."""
    every = [*mounts, Mount(CODE_FOLDER, "/code"), *options.more_mounts]
    every.sort(key=lambda mount: not mount.read_only)
    return list({mount.target: mount for mount in every}.values())
