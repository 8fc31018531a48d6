"""The kernels against float64, beside tensor operations in the same precision.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

import gc
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nystromformer.attention.comparison import (
    MASKS,
    build,
    by_tensor_operations,
    draw_inputs,
    errors,
    masks_of_all_kinds,
    results,
)
from nystromformer.attention.kernels import why_not
from nystromformer.benchmark.gpu.settings import GpuBenchmark, dtype_of
from nystromformer.benchmark.pieces import LeftOut, Piece

FACTOR = 2.0
"""How many times the error of tensor operations the kernels' may be."""
FLOAT32_FLOOR = 1e-5
"""A relative error that is no mistake in float32 even where tensor operations are more exact: a third of what the tests
allow."""
_MASKED = 1e4
"""What stands at masked tokens: it must not matter."""
_ALIKE = 16
"""Neighbours that have something in common."""
_POISON_BYTES = 1 << 30


@dataclass(frozen=True)
class Comparison:
    """What is compared."""

    dtype: str
    num_landmarks: int
    head_dim: int
    rows: int
    heads: int
    length: int
    conv_kernel_size: int | None
    masked: bool


@dataclass(frozen=True)
class CheckRow(Comparison):
    """What came of a comparison; errors are ‖out − reference‖ / ‖reference‖ of the output and of the gradients."""

    seed: int
    ours: dict[str, float]
    plain: dict[str, float]
    """Of tensor operations in the same precision."""
    repeats: bool
    """Whether a second run gave the same bits."""
    gives_zeros: bool
    """Whether masked tokens got zeros."""

    @property
    def wrong(self) -> list[str]:
        """What fails; nothing where all is well."""
        floor = FLOAT32_FLOOR if self.dtype == "float32" else 0.0
        reasons = [
            f"{name}: error {error:.2e}, tensor operations {self.plain[name]:.2e}"
            for name, error in self.ours.items()
            # Written so that NaN fails.
            if not (error <= FACTOR * self.plain[name] or error <= floor)
        ]
        if not self.repeats:
            reasons.append("a second run gave other bits")
        return reasons if self.gives_zeros else [*reasons, "masked tokens got other values than zero"]


def compare(settings: GpuBenchmark, case: Comparison, number: int) -> Sequence[CheckRow]:
    """The kernels and tensor operations with float64, on inputs of a seed of their own."""
    # Convolutions of float32 numbers by tensor operations would be inexact.
    torch.backends.cudnn.allow_tf32 = False
    device, dtype, seed = settings.device, dtype_of(case.dtype), settings.seed + number
    generator = torch.Generator(device).manual_seed(seed)
    keep = masks_of_all_kinds(case.length, case.num_landmarks, generator) if case.masked else None
    size = (case.rows, case.length, case.heads, case.head_dim)
    inputs = draw_inputs(size, dtype, generator, _ALIKE, keep, _MASKED)
    if settings.implementation == "triton":
        reason = why_not(inputs[0], case.num_landmarks, case.conv_kernel_size)
        if reason is not None:
            raise LeftOut(reason)
    parameters: dict[str, Any] = {"num_heads": case.heads, "head_dim": case.head_dim}
    parameters |= {"num_landmarks": case.num_landmarks, "conv_kernel_size": case.conv_kernel_size}
    module, plain = (
        build(seed, device, **parameters, implementation=each) for each in (settings.implementation, "torch")
    )
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        _poison(device)
        ours = results(module, inputs, keep)
        _poison(device)
        again = results(module, inputs, keep)
        usual = results(plain, inputs, keep)
    expected = by_tensor_operations(plain, inputs, keep)
    is_masked = None if keep is None else ~keep[:, None, :, None]
    row = CheckRow(
        **vars(case),
        seed=seed,
        ours=errors(ours, expected),
        plain=errors(usual, expected),
        repeats=all(torch.equal(value, again[name]) for name, value in ours.items()),
        gives_zeros=is_masked is None
        or not any(bool(ours[name].masked_select(is_masked).any()) for name in ("out", "q", "k", "v")),
    )
    return [row]


def check_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """The comparisons, each with a number of its own. Nearly all of their time is compiling: nine kernels or more."""
    for number, case in enumerate(_cases(settings)):
        size = f"M {case.num_landmarks}, D {case.head_dim}, {case.rows} x {case.heads} heads of N {case.length}"
        title = f"{case.dtype}, {size}, {'masked' if case.masked else 'all tokens'}"
        yield Piece("check", title, 20.0, compare, (case, number))


def _cases(settings: GpuBenchmark) -> Iterator[Comparison]:
    """First what takes longest, then every size in every dtype, with and without a mask."""
    sizes, usual = settings.sizes, settings.sizes.conv_kernel_size
    for rows, heads, length in sizes.check_large:
        yield Comparison(sizes.dtype, sizes.num_landmarks, sizes.head_dim, rows, heads, length, usual, False)
    filters = itertools.cycle((usual, 65, None, 9, usual))
    for dtype in sizes.check_dtypes:
        for place, (landmarks, head_dim) in enumerate(sizes.check_landmarks):
            length, heads = sizes.check_lengths[place % len(sizes.check_lengths)]
            for masked in (True, False):
                yield Comparison(dtype, landmarks, head_dim, len(MASKS), heads, length, next(filters), masked)


def largest_ratio(rows: Sequence[CheckRow], name: str) -> float:
    """Our error of the output or a gradient over that of tensor operations, the largest; NaN where there is one."""
    pairs = [(row.ours[name], row.plain[name]) for row in rows if name in row.ours]
    ratios = [ours / plain if plain else (math.inf if ours else 1.0) for ours, plain in pairs]
    return max(ratios, key=lambda ratio: math.inf if math.isnan(ratio) else ratio)


def _poison(device: torch.device) -> None:
    """Fill the memory that the allocator will give next with NaN: of every dtype, all bits set are one."""
    if device.type != "cuda":
        return
    gc.collect()
    torch.cuda.empty_cache()
    # Blocks of up to a mebibyte come from a pool of their own.
    sizes = [_POISON_BYTES] + [1 << 20] * 64
    blocks = [torch.empty(each, dtype=torch.uint8, device=device).fill_(255) for each in sizes]
    del blocks
