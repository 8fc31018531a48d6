"""Rotary positions (Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, eq. 34).

Of each head's queries and keys, numbers i and i + D/2 are turned, as a point of the plane, by the angle n · θᵢ, where n
is the token's position and θᵢ = θ^(−2i/D), with the paper's θ = 10,000 or a config's. So the product of a query and a
key depends on the distance of their positions alone. The paper pairs neighbours 2i and 2i + 1; halves are the pairs of
GPT-NeoX and Llama, the same up to an order of the projections' outputs.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """What turns the tokens of a row, (N, H, D) or (N, 1, D) each, float32."""

    cos_NHD: Tensor
    """Cosines, those of the first half of D again in the second."""
    sin_NHD: Tensor
    """Sines, those of the first half with the other sign."""


class Rotary:
    """`rotary(length, device)`: the rotation of positions 0 … length - 1, which all layers share.

    It is kept from one call to the next, for rows up to the longest so far. It is no buffer of a module: a model that
    is cast to 16 bits would lose its digits, and a DDP would send it around.
    """

    def __init__(self, num_heads: int, head_dim: int, max_seq_len: int, theta: float = 10_000.0) -> None:
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.max_seq_len = max_seq_len
        self.theta = theta
        self._kept: Rotation | None = None

    def __call__(self, length: int, device: torch.device) -> Rotation:
        if torch.compiler.is_compiling():
            return _rotation(length, self.head_dim, self.theta, device)
        kept = self._kept
        if kept is None or len(kept.cos_NHD) < length or kept.cos_NHD.device != device:
            kept = self._made(min(self.max_seq_len, 1 << (length - 1).bit_length()), device)
            if type(kept.cos_NHD) is Tensor:  # and no fake one of whoever traces
                self._kept = kept
        return Rotation(kept.cos_NHD[:length], kept.sin_NHD[:length])

    def _made(self, length: int, device: torch.device) -> Rotation:
        # What is made under inference_mode could not be saved for a backward pass later.
        with torch.inference_mode(False):
            rotation = _rotation(length, self.head_dim, self.theta, device)
            if device.type != "cpu":
                return rotation
            # A CPU multiplies by what is as wide as its factor in half the time.
            wide = (each_N1D.repeat(1, self.num_heads, 1) for each_N1D in rotation)
            return Rotation(*wide)


def _rotation(length: int, head_dim: int, theta: float, device: torch.device) -> Rotation:
    # Angles in float64: float32 would be wrong by 1e-4 and more at positions of some thousands.
    options: dict[str, Any] = {"dtype": torch.float64, "device": device}
    frequencies = theta ** (torch.arange(0, head_dim, 2, **options) / -head_dim)
    angles = torch.arange(length, **options)[:, None, None] * frequencies
    cos, sin = angles.cos().float(), angles.sin().float()
    return Rotation(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))


def rotated(x_BNHD: Tensor, rotation: Rotation) -> Tensor:
    """The queries, or keys, of the tokens of rows, turned; of their dtype, computed in float32 or wider."""
    cos_NHD, sin_NHD = rotation
    wide = x_BNHD.to(torch.promote_types(x_BNHD.dtype, cos_NHD.dtype))
    # Each number beside its partner: three passes over the tokens, and nothing of them is kept for the backward.
    out = (wide * cos_NHD).addcmul_(wide.roll(x_BNHD.shape[-1] // 2, -1), sin_NHD)
    return out.to(x_BNHD.dtype)
