"""Which flags say who predicts a folder's parts; imports nothing slow."""

from __future__ import annotations

import importlib
from pathlib import Path

from nystromformer.errors import UserError

ENGINES = ("local", "ray")


def check_engine(engine: str, address: str | None, workers: int | None) -> None:
    """Check the flags of an engine.

    Raises:
        UserError: no such engine, or flags of another one.
        ModuleNotFoundError: it is not installed.
    """
    if engine not in ENGINES:
        raise UserError(f"--engine {engine}: expected one of {', '.join(ENGINES)}")
    if engine == "ray":
        importlib.import_module("ray")
        return
    if given := [flag for flag, value in {"--address": address, "--workers": workers}.items() if value is not None]:
        raise UserError(f"{given[0]}: expected --engine ray with it")


def is_experiment(folder: Path) -> bool:
    """Whether a folder is an experiment's; its runs lie below it."""
    return (folder / "config.json").is_file()
