"""Random numbers of attentions: functions of a key, so that no state is kept and a run that goes on draws the same; and
attentions whose numbers are redrawn as training goes on.
"""

import hashlib
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Attention, Needs
from nystromformer.config.attention import AttentionConfig
from nystromformer.config.attention.methods import PerformerConfig, ReformerConfig


def generator_of(*key: int) -> torch.Generator:
    """A generator on the CPU that the key alone decides; keys that differ anywhere give unrelated numbers."""
    digest = hashlib.sha256(" ".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def own_seed() -> int:
    """A module's own seed, drawn from the default generator as its initial weights are: the run's seed decides it, and
    layers differ.
    """
    return int(torch.randint(2**62, (), device="cpu"))


class RedrawnAttention(Attention):
    """An attention with random numbers that are drawn anew every so many training steps.

    They are a function of a seed of the module's own and the number of the training step; those in use are saved with
    the weights.
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
