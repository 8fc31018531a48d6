"""Compiling a model's layers, where this machine has what that takes."""

import importlib.util
import os
import shutil
from collections.abc import Iterable

import torch
from torch import nn

_COMPILERS = ("g++", "c++", "clang++")


def compile_units(units: Iterable[nn.Module], device: torch.device) -> str | None:
    """Compile modules in place, their parameters' names unchanged; layers alike share one compilation.

    Returns:
        What the machine lacks for that, where the modules run as they are; None where it lacks nothing.
    """
    missing = missing_compiler(device)
    if missing is None:
        for unit in units:
            unit.compile()
    return missing


def missing_compiler(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine; None where it lacks nothing."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), *_COMPILERS) if name):
        return f"found no C++ compiler ({', '.join(_COMPILERS)}, or the environment variable CXX)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "found no triton package (pip install triton)"
    return None
