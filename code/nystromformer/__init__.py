"""Nyströmformer: O(n) self-attention by the Nyström method (Xiong et al., AAAI 2021)."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nystromformer.exchange.library import from_pretrained as from_pretrained
    from nystromformer.tasks.prediction.loaded import load_run as load_run

__version__ = "0.1.0"

_DOORS = {"from_pretrained": "exchange.library", "load_run": "tasks.prediction.loaded"}
"""What the package offers by itself, and where it is: imported when it is asked for, because torch takes seconds."""


def __getattr__(name: str) -> object:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_DOORS[name]}")
    except ModuleNotFoundError as error:
        from nystromformer.command_line.extras import what_is_missing

        if (missing := what_is_missing(error)) is None:
            raise
        raise ModuleNotFoundError(f"{name}: {missing}", name=error.name) from error
    return getattr(module, name)
