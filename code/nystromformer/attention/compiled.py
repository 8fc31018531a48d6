"""What attention tells `torch.compile`, without importing it."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose result is a constant of compiled code, as `torch.compiler.assume_constant_result` does.

    That one imports the whole compiler to set this mark, which took a third of the start of every command, on GPUs and
    without.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function
