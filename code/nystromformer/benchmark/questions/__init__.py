"""What `run_benchmark.py` measures: a module for each question, with its settings and, of its name, its command.

They import no torch; what they need to measure is imported within the command.
"""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def find_commands() -> list[Callable[..., Any]]:
    """The command of each module, in alphabetical order."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [getattr(importlib.import_module(f"{__name__}.{name}"), name) for name in names]
