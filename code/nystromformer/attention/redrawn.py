"""Attentions with random numbers that are redrawn as training goes on."""

from abc import abstractmethod

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Attention, Needs
from nystromformer.attention.randomness import own_seed


class RedrawnAttention(Attention):
    """An attention with random numbers that are drawn anew every so many training steps.

    They are a function of a seed of the module's own and the number of the training step, so that a run that goes on
    draws as one that never stopped; those in use are saved with the weights.

    Args:
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        redraw_steps: training steps after which new numbers are drawn; None: the first ones stay.
    """

    needs = Needs(random_numbers=True)
    seed: Tensor
    draw: Tensor

    def __init__(
        self, num_heads: int, head_dim: int, redraw_steps: int | None, conv_kernel_size: int | None, ignore_mask: bool
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        if redraw_steps is not None and redraw_steps < 1:
            raise ValueError(f"redraw_steps must be at least 1, or None, found {redraw_steps}")
        self.redraw_steps = redraw_steps

    @abstractmethod
    def drawn(self, seed: int, draw: int) -> Tensor:
        """The numbers of a draw, on the CPU."""

    def start_drawing(self, buffer: str) -> None:
        """Draw for the first time.

        Args:
            buffer: the name by which the numbers in use are saved.
        """
        seed = own_seed()
        self.register_buffer("seed", torch.tensor(seed, device="cpu"))
        self.register_buffer("draw", torch.tensor(0, device="cpu"))
        self.register_buffer(buffer, self.drawn(seed, 0))
        self._buffer = buffer
        self._in_use: tuple[int, int] | None = None
        self.register_load_state_dict_post_hook(_forget_what_is_in_use)

    def at_step(self, step: int) -> None:
        if self.redraw_steps is None:
            return
        draw = step // self.redraw_steps
        if self._in_use is None:  # asked once: on a GPU the answer has to be waited for
            self._in_use = int(self.seed), int(self.draw)
        seed, in_use = self._in_use
        if draw != in_use:
            self.draw.fill_(draw)
            self.get_buffer(self._buffer).copy_(self.drawn(seed, draw))
            self._in_use = seed, draw


def _forget_what_is_in_use(module: nn.Module, keys: object) -> None:
    assert isinstance(module, RedrawnAttention)
    module._in_use = None
