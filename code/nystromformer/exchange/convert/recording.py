"""What happens within a model in one forward pass.

Shapes: B rows, N tokens, E width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from nystromformer.model import PretrainingModel


@dataclass(frozen=True)
class Recording:
    """Of each layer what its attention was called with and gave, (B, N, E), and its output, (B, N, E)."""

    attended: list[tuple[tuple[Any, ...], Tensor]] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


@contextmanager
def recording(model: PretrainingModel) -> Iterator[Recording]:
    """Within the block the model's encoder is called, once; behind it the recording has what its layers did."""
    found = Recording()

    def note_attention(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        found.attended.append((arguments, output))

    def note_layer(module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        found.hidden.append(output)

    hooks = []
    for layer in model.encoder.layers:
        hooks.append(layer.get_submodule("attention").register_forward_hook(note_attention))
        hooks.append(layer.register_forward_hook(note_layer))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
