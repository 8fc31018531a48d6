"""The whole attention over the length: time and memory beside what it competes with; what the device can do at most.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.efficiency.report import Cell
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.peers import (
    NystromAttentionPackage,
    Shape,
    fused_softmax,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.pieces import LeftOut, Piece
from nystromformer.benchmark.timing import (
    AttentionInputs,
    Passes,
    Timing,
    attention_passes,
    peak_memory,
    time_repeatedly,
)
from nystromformer.errors import first_line

OURS, MASKED, TORCH = "nystrom, kernels", "nystrom, kernels, padding", "nystrom, torch"
FLASH, TRANSFORMERS, PACKAGE = "softmax, flash", "transformers", "nystrom-attention"
METHODS = (OURS, MASKED, TORCH, FLASH, TRANSFORMERS, PACKAGE)
COPY, MATMUL = "copy", "matmul"

_PADDED = 0.05
"""Of each row, where there is padding: what packed rows of pretraining have at most."""
_SLOWEST = 2.0
"""Seconds that a step may take: what is estimated to take longer is left out."""
_SOFTMAX_RATE = 2e14
"""Operations a second of fused softmax attention, for that estimate."""


@dataclass(frozen=True)
class CeilingRow:
    """What the device can do at most."""

    name: str
    figure: float
    """Bytes a second, read and written; or operations a second."""
    time: Timing


def ceiling_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """A copy and a matrix product."""
    for name, measure in ((COPY, measure_copy), (MATMUL, measure_matmul)):
        yield Piece("ceilings", name, 4.0, measure)


def measure_copy(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """From device to device, of far more than any cache holds."""
    size, device = settings.sizes.copy_bytes, settings.device
    source = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    time = time_repeatedly(lambda: target.copy_(source), settings.sizes.seconds)
    return [CeilingRow(COPY, 2 * size / (time.median / 1e3), time)]


def measure_matmul(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """Square, on random numbers: zeros are faster."""
    n, device = settings.sizes.matmul, settings.device
    a, b = (torch.randn(n, n, device=device).to(settings.dtype) for _ in range(2))
    out = torch.empty_like(a)
    time = time_repeatedly(lambda: torch.mm(a, b, out=out), settings.sizes.seconds)
    return [CeilingRow(MATMUL, 2 * n**3 / (time.median / 1e3), time)]


def attention_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """Every method at every length, and our attention on the longest sequence."""
    sizes = settings.sizes
    places = [(length, method) for length in sizes.lengths for method in METHODS]
    for length, method in [*places, (sizes.longest, OURS)]:
        title = f"{sizes.rows(length)} x {length} tokens, {method}"
        yield Piece("attention", title, 3.0, measure_attention, (length, method))


def measure_attention(settings: GpuBenchmark, length: int, method: str) -> Sequence[Cell]:
    """One method on a batch.

    Raises:
        LeftOut: another's method that is not there, is not made for this device, or takes too much time or memory.
    """
    seconds = settings.sizes.seconds
    try:
        passes = build(method, settings, draw_inputs(settings, length))
        forward, both = time_repeatedly(passes.forward, seconds), time_repeatedly(passes.both, seconds)
        memory = peak_memory(passes.both), peak_memory(passes.forward)
        return [Cell(length, method, forward, both, *memory)]
    except RuntimeError as error:
        is_memory = isinstance(error, torch.OutOfMemoryError)
        if method != OURS and (is_memory or "No available kernel" in str(error)):
            raise LeftOut(first_line(error)) from None
        raise


def draw_inputs(settings: GpuBenchmark, length: int, rows: int | None = None) -> AttentionInputs:
    """Of a batch of this length, in the precision that is timed."""
    torch.manual_seed(0)
    sizes = settings.sizes
    size = (sizes.rows(length) if rows is None else rows, length, sizes.num_heads, sizes.head_dim)
    return AttentionInputs.draw(size, settings.device, settings.dtype)


def build(name: str, settings: GpuBenchmark, inputs: AttentionInputs) -> Passes:
    """A method on these inputs, parameters in float32 under autocast, as in training.

    Raises:
        LeftOut: it is not there, or would take too long.
    """
    sizes, length = settings.sizes, inputs.leaves[0].shape[2]
    shape = Shape(sizes.num_heads, sizes.head_dim, sizes.num_landmarks, sizes.conv_kernel_size, length)
    autocast = settings.precision.autocast
    if name in (OURS, MASKED, TORCH):
        module: nn.Module = create_attention(
            "nystrom",
            **{key: value for key, value in vars(shape).items() if key != "length"},
            implementation="torch" if name == TORCH else settings.implementation,
        ).to(settings.device)
        # One mask for all layers of a model.
        call = partial(module, mask=AttentionMask(_keep(inputs))) if name == MASKED else module
        return attention_passes(call, inputs, module.parameters(), autocast)
    if name == FLASH:
        B, H, N, D = inputs.leaves[0].shape
        # Two products forward, five backward.
        seconds = 14.0 * B * H * N * N * D / _SOFTMAX_RATE
        if seconds > _SLOWEST:
            raise LeftOut(f"quadratic in the length: a step would take about {seconds:.0f} s")
        return attention_passes(fused_softmax, inputs, (), partial(_flash, settings))
    if not is_installed(name.replace("-", "_")):
        raise LeftOut(f"{name} is not installed")
    if name == TRANSFORMERS:
        module = transformers_nystrom(shape).to(settings.device)
        return attention_passes(module, inputs, module.parameters(), autocast)
    package = NystromAttentionPackage(shape).to(settings.device)
    # It takes Q, K and V as one tensor, which its projection would write: joining them is not its work.
    joined = torch.cat([x.detach().transpose(1, 2).flatten(2) for x in inputs.leaves], dim=-1).requires_grad_()
    return attention_passes(package.joined, replace(inputs, leaves=[joined]), package.parameters(), autocast)


def _keep(inputs: AttentionInputs) -> Tensor:
    B, _, N, _ = inputs.leaves[0].shape
    tokens_N = torch.arange(N, device=inputs.leaves[0].device)
    return (tokens_N < N - int(_PADDED * N)).expand(B, N).clone()


@contextmanager
def _flash(settings: GpuBenchmark) -> Iterator[None]:
    with settings.precision.autocast(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield
