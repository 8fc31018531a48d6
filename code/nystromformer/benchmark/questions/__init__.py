"""What `run_benchmark.py` measures: a module for each question, with its settings and, of its name, its command.

A command measures, writes its results and returns what to print. Its parameters are flags, or dataclasses of flags
(`flag_groups.py`). The modules import no torch; what they need to measure is imported within the command.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.tables import show


def find_commands() -> list[Callable[..., None]]:
    """The command of each module, in alphabetical order."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [_printing(getattr(importlib.import_module(f"{__name__}.{name}"), name)) for name in names]


def _printing(question: Callable[..., str]) -> Callable[..., None]:
    measure = with_flag_groups(question)

    @functools.wraps(measure)
    def command(*args: Any, **flags: Any) -> None:
        show(measure(*args, **flags))

    return command
