"""How the kernels' work is cut into programs, and what they can be asked for.

Blocks and warps are chosen so that each kernel fits the registers and the shared memory of one multiprocessor
(docs/kernels.md has the compiler's figures).
"""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
LANDMARKS, HEAD_DIMS = (32, 64), (32, 64, 128)
LARGEST_FILTER = 129
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

HOPPER_ROOM, LARGE_ROOM, SMALL_ROOM = 227 * 1024, 163 * 1024, 99 * 1024
"""Bytes of shared memory that a program may have: on an H100, on an A100, on other GPUs since 2020."""
LEAST_ROOM = {2: SMALL_ROOM, 4: LARGE_ROOM}
"""What a program must be given, by the bytes of a number of Q, K and V."""
LARGEST_AREA = {2: 64 * 128, 4: 64 * 64}
"""Landmarks times head dims that fit into that, by the same bytes."""

ENOUGH_PROGRAMS = 512
"""Programs that fill a large GPU several times over; work is split until there are as many."""

_OUTPUT_BLOCKS = 8
"""So many that what is loaded for all of them takes little time, so few that the last programs do not work alone."""


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
    key_stages: int
    """Forward, of loops over keys: blocks that are on their way at a time."""
    output_block: int
    """Tokens at a time where the output is written."""
    output_tokens: int
    """Of a program that does: blocks that share landmarks and filter."""
    output_stages: int
    """Of that program's blocks, how many are on their way at a time."""
    gradient_block: int
    """Tokens at a time, backward."""
    tokens_of_split: int
    splits: int
    """Splits, backward, and the tokens of each."""
    gradient_stages: int
    """Backward: blocks that are on their way at a time."""
    chunk: int
    """Neighbours of the convolution at a time."""
    taps_block: int
    """Tokens at a time for the filter's gradient."""
    taps_window: int
    """With their neighbours: with K taps K - 1 more, at least."""
    system_precision: str
    """Of products of landmarks' matrices, float32 numbers whatever Q is. Three products of bf16 parts err by 2⁻¹⁶, far
    less than Q, K and V of 16 bits do, whose rounding the inverse enlarges alike; float32 itself takes tf32's parts."""


def make_plan(
    heads: int, length: int, num_landmarks: int, head_dim: int, taps: int, element_size: int, room: int
) -> Plan:
    """The plan for B·H = `heads` of `length` tokens.

    Args:
        taps: K, or 0 without a convolution.
        element_size: bytes of a number of Q, K and V.
        room: bytes of shared memory that a program may have, at least `LEAST_ROOM[element_size]`.
    """
    is_short, area = element_size == 2, num_landmarks * head_dim
    fits = area <= 64 * 64
    # Hopper's matrix units take numbers from shared memory, others from registers, which more tokens would overflow.
    is_light = is_short and fits and room >= HOPPER_ROOM
    if is_short:
        block, gradient_block = 128 if is_light else 64, 64 if fits else 32
    else:
        block, gradient_block = 32, 32 if head_dim <= 64 else 16
    chunk = 32 if is_short else 16

    def needs(block: int, tensors: int, stages: int) -> int:
        """Bytes of a loop over blocks of several tensors, beside landmarks, a filter's bands and weights: what the
        compiler asked for was never more."""
        neighbours = _ceil(block + taps - 1, chunk) * chunk if taps else 0
        # Of float32 numbers the parts that are multiplied stay, too.
        stays = 3 * area + block * (num_landmarks + neighbours * (1 if is_short else 3))
        return element_size * (stays + stages * (tensors * block + neighbours) * head_dim)

    def fitting(block: int, tensors: int) -> int:
        while block > 16 and needs(block, tensors, 1) > room:
            block //= 2
        return block

    def stages(block: int, tensors: int, programs: int) -> int:
        """Three have the next block on its way, where so many programs still find room on a multiprocessor."""
        if not is_short:  # each number has parts of its own beside it
            return 1 if taps else 2
        if programs * needs(block, tensors, 3) <= room:
            return 3
        return 2 if needs(block, tensors, 2) <= room else 1

    output_block, gradient_block = fitting(min(64, block), 1), fitting(gradient_block, 2)
    # Longer filters take a wider window, not more tokens: products of both are what a program must hold.
    taps_block = min(32, max(16, _next_power(taps - 1)))
    segments = 16
    while segments > 1 and heads * (num_landmarks // segments) < ENOUGH_PROGRAMS:
        segments //= 2
    splits = min(_ceil(length, gradient_block), max(1, ENOUGH_PROGRAMS // heads))
    tokens_of_split = _ceil(_ceil(length, splits), gradient_block) * gradient_block
    return Plan(
        block=block,
        segments=segments,
        parts=num_landmarks // segments,
        warps=4 if is_light else 8,
        output_block=output_block,
        output_tokens=output_block
        * min(_OUTPUT_BLOCKS, max(1, heads * _ceil(length, output_block) // ENOUGH_PROGRAMS)),
        output_stages=stages(output_block, 1, programs=2),
        gradient_block=gradient_block,
        tokens_of_split=tokens_of_split,
        splits=_ceil(length, tokens_of_split),
        gradient_stages=stages(gradient_block, 2, programs=1) if fits and (is_short or head_dim <= 64) else 1,
        key_stages=3 if is_light else 2,
        chunk=chunk,
        taps_block=taps_block,
        taps_window=_next_power(taps_block + taps - 1),
        system_precision="bf16x3" if is_short else "tf32x3",
    )


def constant_when_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose result is a constant of compiled code, as `torch.compiler.assume_constant_result` does.

    That one imports the whole compiler to set this mark, which took a third of the start of every command, on GPUs and
    without.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


@constant_when_compiled
def room(device: torch.device) -> int:
    """Bytes of shared memory that a program on a device may have; in the interpreter as many as on an H100."""
    if device.type != "cuda":
        return HOPPER_ROOM
    properties = torch.cuda.get_device_properties(device)
    # AMD's devices do not say it, and have less than any kernel needs.
    return int(getattr(properties, "shared_memory_per_block_optin", 0))


def _next_power(number: int) -> int:
    """The power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
