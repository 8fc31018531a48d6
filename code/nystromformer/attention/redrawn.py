"""Attentions with random numbers that are redrawn as training goes on."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Attention, Needs
from nystromformer.attention.randomness import own_seed
from nystromformer.config.attention import AttentionConfig
from nystromformer.config.attention.performer import PerformerConfig
from nystromformer.config.attention.reformer import ReformerConfig


class RedrawnAttention(Attention):
    """An attention with random numbers that are drawn anew every so many training steps.

    They are a function of a seed of the module's own and the number of the training step, so that a run that goes on
    draws as one that never stopped; those in use are saved with the weights.
    """

    config: PerformerConfig | ReformerConfig
    needs = Needs(random_numbers=True)
    numbers: ClassVar[str]
    """The name by which the numbers in use are saved."""
    seed: Tensor
    draw: Tensor

    def __init__(self, config: AttentionConfig, num_heads: int, head_dim: int) -> None:
        super().__init__(config, num_heads, head_dim)
        seed = own_seed()
        self.register_buffer("seed", torch.tensor(seed, device="cpu"))
        self.register_buffer("draw", torch.tensor(0, device="cpu"))
        self.register_buffer(self.numbers, self.drawn(seed, 0))
        self._in_use: tuple[int, int] | None = None
        self.register_load_state_dict_post_hook(_forget_what_is_in_use)

    @abstractmethod
    def drawn(self, seed: int, draw: int) -> Tensor:
        """The numbers of a draw, on the CPU."""

    def at_step(self, step: int) -> None:
        if self.config.redraw_steps is None:
            return
        draw = step // self.config.redraw_steps
        if self._in_use is None:  # asked once: on a GPU the answer has to be waited for
            self._in_use = int(self.seed), int(self.draw)
        seed, in_use = self._in_use
        if draw != in_use:
            self.draw.fill_(draw)
            self.get_buffer(self.numbers).copy_(self.drawn(seed, draw))
            self._in_use = seed, draw


def _forget_what_is_in_use(module: nn.Module, keys: object) -> None:
    assert isinstance(module, RedrawnAttention)
    module._in_use = None
