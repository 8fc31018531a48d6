"""How one model is trained towards another that it was made from: what a forward did within it, and the losses.

Shapes: B rows, N tokens, E width.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WARM_UP = 0.05
"""Of a stage's steps, those in which the learning rate rises; then it falls to zero linearly."""


class Call(NamedTuple):
    """What a module of a model was called with, and the vectors (B, N, E) that it gave."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output_BNE: Tensor


@contextmanager
def recorded(model: nn.Module, names: Iterable[str]) -> Iterator[list[Call]]:
    """Within the block the model is called; the list gets a `Call` for each call of one of the named modules."""
    calls: list[Call] = []

    def note(name: str, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(Call(name, args, kwargs, vectors(output)))

    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda module, args, kwargs, output, name=name: note(name, args, kwargs, output), with_kwargs=True
        )
        for name in names
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def attention_loss(model: nn.Module, calls: Iterable[Call], keep_BN: Tensor | None) -> Tensor:
    """The mean over a source's recorded attentions of the relative square of what the model's own give for the same
    input (LoLCATs, arXiv 2410.10254).
    """
    return _mean((vectors(model.get_submodule(c.name)(*c.args, **c.kwargs)), c.output_BNE, keep_BN) for c in calls)


def hidden_loss(found: Sequence[Tensor], wanted: Sequence[Tensor], keep_BN: Tensor | None) -> Tensor:
    """The mean over layers of the relative square of their outputs."""
    return _mean((one, other, keep_BN) for one, other in zip(found, wanted, strict=True))


def _mean(pairs: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> Tensor:
    # Of each layer relative to its own size: else the layers with large outputs would decide.
    return torch.stack([relative_square(*pair) for pair in pairs]).mean()


def vectors(output: Any) -> Tensor:
    """The attention's output among all that a layer's module returns."""
    found: Tensor = output if isinstance(output, Tensor) else output[0]
    return found


def relative_square(found_BNE: Tensor, wanted_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Σ (found - wanted)² / Σ wanted², over valid tokens; float32.

    Args:
        keep_BN: bool, True for valid tokens; None: all are.
    """
    found, wanted = (valid_alone(x, keep_BN).float() for x in (found_BNE, wanted_BNE))
    return (found - wanted).square().sum() / wanted.square().sum()


def valid_alone(x_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Zero at the other tokens."""
    return x_BNE if keep_BN is None else torch.where(keep_BN[..., None], x_BNE, 0.0)
