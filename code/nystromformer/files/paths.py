"""Where the shipped experiments are."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
"""The clone; of an image without one, the root of its files."""
EXPERIMENTS = PROJECT / "experiments"


def experiment_folder(place: str | Path) -> Path:
    """A folder by its path or, where there is none of that name, a shipped experiment by its name alone."""
    path = Path(place)
    if os.path.exists(path) or len(path.parts) != 1:  # not Path.exists, which fails for names that are too long
        return path
    shipped = (parent / path for parent in (PROJECT, EXPERIMENTS))
    return next((folder for folder in shipped if os.path.isfile(folder / "config.json")), path)
