"""How the kernels' work is cut into programs, and what they can be asked for.

Blocks and warps are chosen so that each kernel fits the registers and the shared memory of one multiprocessor
(docs/kernels.md has the compiler's figures).
"""

from typing import NamedTuple

import torch

LANDMARKS, HEAD_DIMS = (32, 64, 128, 256), (32, 64, 128)
LARGEST_TILE = 128 * 128
"""Landmarks times head dims: of more the backward pass does not fit a multiprocessor."""
LARGEST_FILTER = 129
SHARED_MEMORY = 163 * 1024
"""Bytes that the largest program has, which docs/kernels.md lists."""
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

ENOUGH_PROGRAMS = 512
"""Programs that fill a large GPU several times over; work is split until there are as many."""


class Plan(NamedTuple):
    """How the work of one call is cut."""

    block: int
    """Tokens at a time, forward."""
    segments: int
    """Segments of a split, forward; at most 16."""
    parts: int
    """Splits, forward."""
    warps: int
    """Forward."""
    gradient_block: int
    """Tokens at a time, backward."""
    tokens_of_split: int
    splits: int
    """Splits, backward, and the tokens of each."""
    stages: int
    """Blocks that are on their way at a time, backward."""
    taps_block: int
    """Tokens at a time for the filter's gradient: with K taps each block needs K - 1 more."""
    precision: str
    """Of products of float32 numbers. Three products of tf32 parts are as exact as float32's own, but those of large
    tiles do not fit. Products of 16-bit numbers are exact in any case."""

    @property
    def chunk(self) -> int:
        """Neighbours of the convolution at a time, forward."""
        return min(64, self.block)

    @property
    def gradient_chunk(self) -> int:
        """The same, backward."""
        return min(64, self.gradient_block)


def make_plan(heads: int, length: int, num_landmarks: int, head_dim: int, taps: int, element_size: int) -> Plan:
    """The plan for B·H = `heads` of `length` tokens.

    Args:
        taps: K, or 0 without a convolution.
        element_size: bytes of a number of Q, K and V.
    """
    tile, is_short = num_landmarks * head_dim, element_size == 2
    block = 128 if tile <= 64 * 64 and is_short else 64 if tile <= 128 * 64 and is_short else 32
    fits = tile <= 64 * 64 and num_landmarks <= 64
    gradient_block = (64 if fits else 32 if num_landmarks <= 128 else 16) if is_short else (32 if fits else 16)
    segments = 16
    while segments > 1 and heads * (num_landmarks // segments) < ENOUGH_PROGRAMS:
        segments //= 2
    splits = min(_ceil(length, gradient_block), max(1, ENOUGH_PROGRAMS // heads))
    tokens_of_split = _ceil(_ceil(length, splits), gradient_block) * gradient_block
    return Plan(
        block=block,
        segments=segments,
        parts=num_landmarks // segments,
        warps=4 if tile <= 64 * 64 and is_short else 8,
        gradient_block=gradient_block,
        tokens_of_split=tokens_of_split,
        splits=_ceil(length, tokens_of_split),
        stages=2 if fits else 1,
        taps_block=max(16, 1 << max(0, taps - 2).bit_length()),
        precision="tf32x3" if is_short or fits else "ieee",
    )


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
