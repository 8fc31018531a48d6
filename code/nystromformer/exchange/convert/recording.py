"""What happens within a model in one forward pass.

Shapes: B rows, N tokens, E width.
"""

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from nystromformer.model import PretrainingModel


@dataclass(frozen=True)
class Attended:
    """A layer's attention in one forward pass."""

    arguments: tuple[Any, ...]
    output_BNE: Tensor


class Recorded:
    """The inputs and outputs of each layer's attention, and each layer's output, in one forward pass.

    Args:
        model: whose encoder is called within the block.
    """

    def __init__(self, model: PretrainingModel) -> None:
        self._layers = model.encoder.layers
        self.attended: list[Attended] = []
        self.hidden: list[Tensor] = []
        """Each layer's output, (B, N, E)."""
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for layer in self._layers:
            attention = layer.get_submodule("attention")
            self._hooks.append(attention.register_forward_hook(self._note_attention))
            self._hooks.append(layer.register_forward_hook(self._note_layer))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note_attention(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.attended.append(Attended(arguments, output))

    def _note_layer(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        self.hidden.append(output)
