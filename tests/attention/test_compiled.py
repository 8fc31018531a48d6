"""Marks for `torch.compile` that are made without it."""

import torch

from nystromformer.attention.compiled import constant_when_compiled


def test_the_mark_is_the_compilers_own() -> None:
    def ours() -> int:
        return 3

    def theirs() -> int:
        return 3

    assert constant_when_compiled(ours) is ours
    assert vars(ours) == vars(torch.compiler.assume_constant_result(theirs)) != {}


def test_a_marked_function_is_called_once_and_never_traced() -> None:
    calls = []

    @constant_when_compiled
    def counted(number: int) -> int:
        calls.append(number)
        return number + 1

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * counted(4)

    torch.compiler.reset()
    compiled = torch.compile(double, fullgraph=True, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), compiled(x))
    assert calls == [4]
