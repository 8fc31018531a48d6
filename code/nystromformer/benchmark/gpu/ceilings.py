"""What the device can do at most: copying, and multiplying matrices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nystromformer.benchmark.gpu.clock import times_in_turn
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.pieces import Piece
from nystromformer.benchmark.timing import Timing, Work

COPY, MATMUL = "copy", "matmul"


@dataclass(frozen=True)
class CeilingRow:
    """A ceiling; the figure is of the median."""

    name: str
    figure: float
    """Bytes a second, read and written; or operations a second."""
    time: Timing


def ceiling_pieces() -> Iterator[Piece]:
    for name, measure in ((COPY, measure_copy), (MATMUL, measure_matmul)):
        yield Piece("ceilings", name, 4.0, measure)


def measure_copy(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """From device to device, of far more than any cache holds."""
    size, device = settings.sizes.copy_bytes, settings.device
    source = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    time = _time(settings, lambda: target.copy_(source))
    return [CeilingRow(COPY, 2 * size / (time.median / 1e3), time)]


def measure_matmul(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """Square, on random numbers: zeros are faster."""
    n, device = settings.sizes.matmul, settings.device
    a, b = (torch.randn(n, n, device=device).to(settings.dtype) for _ in range(2))
    out = torch.empty_like(a)
    time = _time(settings, lambda: torch.mm(a, b, out=out))
    return [CeilingRow(MATMUL, 2 * n**3 / (time.median / 1e3), time)]


def _time(settings: GpuBenchmark, work: Work) -> Timing:
    return times_in_turn({"": work}, settings.device, settings.sizes.repeats)[""]
