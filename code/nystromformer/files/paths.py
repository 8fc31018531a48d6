"""Which paths files can have, and where the shipped experiments are."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
"""The clone; of an image without one, the root of its files."""
EXPERIMENTS = PROJECT / "experiments"

_LONGEST_PATH = 4095
_LONGEST_NAME = 255
"""Bytes that Linux takes at most: of a whole path, and of each of its parts."""
_MOST_PARTS = 256
"""Folders in each other; Python makes them by a call within a call."""


def wrong_path(text: str) -> str | None:
    """What is expected instead of a path that no file can have, or that no record could name; None where one can."""
    if not text:
        return "a path that is not empty"
    if "\0" in text:
        return "a path without NUL characters"
    try:
        parts = [part.encode() for part in text.split("/")]
    except UnicodeEncodeError:
        return "a path in UTF-8, as what a run writes down names it"
    if max(map(len, parts)) > _LONGEST_NAME or sum(map(len, parts)) + len(parts) - 1 > _LONGEST_PATH:
        return f"a path of at most {_LONGEST_PATH} bytes, each of its parts at most {_LONGEST_NAME}"
    if len(parts) > _MOST_PARTS:
        return f"a path of at most {_MOST_PARTS} parts"
    return None


def experiment_folder(place: str | Path) -> Path:
    """A folder by its path or, where there is none of that name, a shipped experiment by its name alone."""
    path = Path(place)
    if os.path.exists(path) or len(path.parts) != 1:  # not Path.exists, which fails for names that are too long
        return path
    shipped = (parent / path for parent in (PROJECT, EXPERIMENTS))
    return next((folder for folder in shipped if os.path.isfile(folder / "config.json")), path)


def shipped_experiments() -> list[str]:
    """The names of the experiments that are there without a path."""
    return sorted(path.parent.name for parent in (PROJECT, EXPERIMENTS) for path in parent.glob("*/config.json"))
