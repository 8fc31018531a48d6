"""Performer attention (Choromanski et al., "Rethinking Attention with Performers", ICLR 2021): FAVOR+.

Shapes: B batch, H heads, N tokens, D head dim, M random features.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Attention, Needs
from nystromformer.attention.linear import kernelised
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.randomness import generator_of, own_seed

Kernel = Literal["softmax", "relu"]

_RELU_LEAST = 1e-3
"""What is added to each ReLU feature, as in the authors' code: a token that none of them sees still has a weight."""


class PerformerAttention(Attention):
    """φ(Q) (φ(K)ᵀ V) / φ(Q) (φ(K)ᵀ 1), where E[φ(q)ᵀφ(k)] = exp(qᵀk/√D) (their eq. 5 and Lemma 1): O(N M D).

    The features are orthogonal within blocks of D (their section 2.4) and shared by the heads. They are drawn from a
    seed of the module's own and the number of the training step, so that a run that goes on draws as one that never
    stopped; those in use are saved with the weights.

    Args:
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        num_features: M.
        kernel: "softmax": positive features exp(ωᵀx − ‖x‖²/2) of x/D^¼. "relu": max(ωᵀx, 0) + 0.001, their
            generalised attention, which approximates another kernel than softmax's.
        redraw_steps: training steps after which new features are drawn; None: the first ones stay.
    """

    needs = Needs(random_numbers=True)
    features_MD: Tensor
    seed: Tensor
    draw: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int = 256,
        kernel: Kernel = "softmax",
        redraw_steps: int | None = 1000,
        conv_kernel_size: int | None = None,
        ignore_mask: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, found {num_features}")
        self.num_features = num_features
        self.kernel = kernel
        self.redraw_steps = redraw_steps
        seed = own_seed()
        self.register_buffer("seed", torch.tensor(seed, device="cpu"))
        self.register_buffer("draw", torch.tensor(0, device="cpu"))
        self.register_buffer("features_MD", orthogonal_features(num_features, head_dim, seed, 0))
        self._drawn: int | None = None
        self.register_load_state_dict_post_hook(_forget_what_was_drawn)

    def at_step(self, step: int) -> None:
        if self.redraw_steps is None or (draw := step // self.redraw_steps) == self._drawn:
            return
        if draw != int(self.draw):
            self.draw.fill_(draw)
            self.features_MD.copy_(orthogonal_features(self.num_features, self.head_dim, int(self.seed), draw))
        self._drawn = draw  # what the buffer says, without asking a GPU in each step

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        dtype = q.dtype if q.dtype == torch.float64 else torch.float32
        with torch.autocast(q.device.type, enabled=False):
            queries_BHNM, keys_BHNM = self._features(q.to(dtype), k.to(dtype), mask)
            return kernelised(queries_BHNM, keys_BHNM, v.to(dtype)).to(q.dtype)

    def _features(self, q: Tensor, k: Tensor, mask: AttentionMask | None) -> tuple[Tensor, Tensor]:
        """Of queries and keys, up to one positive factor for each query and one for all keys of a row and head, which
        the division takes out again.
        """
        scale = self.head_dim**-0.25
        projection_DM = self.features_MD.to(q.dtype).T * scale
        queries_BHNM, keys_BHNM = q @ projection_DM, k @ projection_DM
        if self.kernel == "relu":
            queries_BHNM, keys_BHNM = (x.relu() + _RELU_LEAST for x in (queries_BHNM, keys_BHNM))
            return queries_BHNM, keys_BHNM if mask is None else keys_BHNM * mask.multiplier(q.dtype)
        # Of the query's own norm nothing is left after the division.
        keys_BHNM = keys_BHNM - k.square().sum(-1, keepdim=True) * (scale * scale / 2)
        if mask is not None:
            keys_BHNM = keys_BHNM + mask.bias(q.dtype).mT
        queries_BHNM = queries_BHNM - queries_BHNM.detach().amax(-1, keepdim=True)
        keys_BHNM = keys_BHNM - keys_BHNM.detach().amax((-1, -2), keepdim=True)
        return queries_BHNM.exp(), keys_BHNM.exp()

    def extra_repr(self) -> str:
        return (
            f"{super().extra_repr()}, num_features={self.num_features}, kernel={self.kernel!r}, "
            f"redraw_steps={self.redraw_steps}"
        )


def _forget_what_was_drawn(module: nn.Module, keys: object) -> None:
    assert isinstance(module, PerformerAttention)
    module._drawn = None


def orthogonal_features(count: int, dim: int, seed: int, draw: int) -> Tensor:
    """Directions (count, dim), float32: each alone is standard normal; within a block of `dim` they are orthogonal.

    Args:
        seed, draw: what they are a function of.
    """
    normal: dict[str, Any] = {"generator": generator_of(seed, draw), "dtype": torch.float64, "device": "cpu"}
    blocks = []
    for _ in range(math.ceil(count / dim)):
        directions, triangle = torch.linalg.qr(torch.randn(dim, dim, **normal))
        # With the signs that make the directions uniformly distributed.
        blocks.append((directions * triangle.diagonal().sign()).T)
    norms = torch.randn(count, dim, **normal).norm(dim=1, keepdim=True)
    return (torch.cat(blocks)[:count] * norms).float()
