"""What the device can do at most, and each kernel by itself: its time, and the bytes that it reads and writes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nystromformer.benchmark.gpu.attention import OURS, build, draw_inputs
from nystromformer.benchmark.gpu.clock import Moment, mark_around
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.pieces import LeftOut, Piece
from nystromformer.benchmark.timing import Timing, no_collections, summarise, wait_for_device

COPY, MATMUL = "copy", "matmul"
WHOLE = "forward and backward"
_BARELY_READ = {("landmark_system_kernel", "v_ptr")}
"""Arguments that are read for rows of few tokens alone."""
_PROFILED = 20
"""Entries of a profile that are kept."""


@dataclass(frozen=True)
class CeilingRow:
    """A ceiling; the figure is of the median."""

    name: str
    figure: float
    """Bytes a second, read and written; or operations a second."""
    time: Timing


@dataclass(frozen=True)
class KernelRow:
    """One kernel within forward and backward, or the whole of both."""

    length: int
    rows: int
    kernel: str
    time: Timing
    nbytes: int | None
    """Of all tensors that it is given, which it reads or writes once at least; None of the whole."""


@dataclass(frozen=True)
class ProfileRow:
    """One line of PyTorch's profile of a forward and backward: everything that is launched, sums and copies too."""

    length: int
    name: str
    calls: int
    milliseconds: float


def ceiling_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """The two ceilings."""
    for name, measure in ((COPY, measure_copy), (MATMUL, measure_matmul)):
        yield Piece("ceilings", name, 4.0, measure)


def measure_copy(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """From device to device, of far more than any cache holds."""
    size, device = settings.sizes.copy_bytes, settings.device
    source = torch.empty(size // 4, dtype=torch.int32, device=device).random_()
    target = torch.empty_like(source)
    time = settings.time_in_turn({COPY: lambda: target.copy_(source)})[COPY]
    return [CeilingRow(COPY, 2 * size / (time.median / 1e3), time)]


def measure_matmul(settings: GpuBenchmark) -> Sequence[CeilingRow]:
    """Square, on random numbers: zeros are faster."""
    n, device = settings.sizes.matmul, settings.device
    a, b = (torch.randn(n, n, device=device).to(settings.dtype) for _ in range(2))
    out = torch.empty_like(a)
    time = settings.time_in_turn({MATMUL: lambda: torch.mm(a, b, out=out)})[MATMUL]
    return [CeilingRow(MATMUL, 2 * n**3 / (time.median / 1e3), time)]


def measure_kernels(settings: GpuBenchmark, length: int) -> Sequence[KernelRow]:
    """All kernels at one length, each within forward and backward."""
    if settings.implementation == "torch":
        raise LeftOut("no kernel runs here: that takes triton and, on a CPU, TRITON_INTERPRET=1")
    torch.manual_seed(0)
    rows, device = settings.sizes.rows(length), settings.device
    both = build(OURS, settings, draw_inputs(settings, rows, length)).both
    samples: dict[str, list[float]] = defaultdict(list)
    nbytes: dict[str, int] = {}
    repeats = settings.sizes.repeats.of([both], device)
    with no_collections():
        for _ in range(repeats):
            with timed_kernels(device) as launches:
                first, last = mark_around(both, device)
                wait_for_device()
            spent: dict[str, float] = defaultdict(float)
            nbytes = defaultdict(int)
            for launch in launches:
                spent[launch.kernel] += launch.before.until(launch.after)
                nbytes[launch.kernel] += sum(x.numel() * x.element_size() for x in launch.tensors)
            for name, milliseconds in {**spent, WHOLE: first.until(last)}.items():
                samples[name].append(milliseconds)
    return [KernelRow(length, rows, name, summarise(values), nbytes.get(name)) for name, values in samples.items()]


def measure_profile(settings: GpuBenchmark, length: int) -> Sequence[ProfileRow]:
    """A profile at one length."""
    torch.manual_seed(0)
    rows = settings.sizes.rows(length)
    method = build(OURS, settings, draw_inputs(settings, rows, length))
    method.both()
    on_gpu = settings.device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiled:
        method.both()
        wait_for_device()
    lines: list[ProfileRow] = []
    for entry in profiled.key_averages():
        # Of an operator the time is its kernels', which have entries of their own.
        if on_gpu and entry.device_type.name != "CUDA":
            continue
        spent = entry.self_device_time_total if on_gpu else entry.self_cpu_time_total
        lines.append(ProfileRow(length, str(entry.key)[:100], int(entry.count), float(spent) / 1e3))
    return sorted(lines, key=lambda row: -row.milliseconds)[:_PROFILED]


def kernel_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    lengths = settings.sizes.kernel_lengths
    for length in lengths:
        yield Piece("kernels", f"{length} tokens", 8.0, measure_kernels, (length,))
    yield Piece("kernels", f"profile, {lengths[0]} tokens", 8.0, measure_profile, (lengths[0],))


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, the moments before and after it, and the tensors that it was given."""

    kernel: str
    before: Moment
    after: Moment
    tensors: Sequence[Tensor]


@contextmanager
def timed_kernels(device: torch.device) -> Iterator[list[Launch]]:
    """Within, each launch of a kernel of this package is noted with the moments before and after it."""
    # Imported here: without triton the rest of the benchmark works.
    from nystromformer.attention.kernels import backward, forward

    launches: list[Launch] = []
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for module in (forward, backward):
            for name, kernel in list(vars(module).items()):
                if name.endswith("_kernel"):
                    replaced.append((module, name, kernel))
                    setattr(module, name, _Timed(kernel, name, device, launches))
        yield launches
    finally:
        for module, name, kernel in replaced:
            setattr(module, name, kernel)


class _Timed:
    """Stands where a kernel is, for `kernel[grid](...)`."""

    def __init__(self, kernel: Any, name: str, device: torch.device, launches: list[Launch]) -> None:
        self._kernel, self._name, self._device, self._launches = kernel, name, device, launches

    def __getitem__(self, grid: Any) -> Any:
        launch = self._kernel[grid]

        def timed(*args: Any, **options: Any) -> Any:
            before, after = Moment(self._device), Moment(self._device)
            before.mark()
            result = launch(*args, **options)
            after.mark()
            given = dict(zip(self._kernel.arg_names, args, strict=False)) | options
            tensors = [
                x for name, x in given.items() if isinstance(x, Tensor) and (self._name, name) not in _BARELY_READ
            ]
            self._launches.append(Launch(self._name, before, after, tensors))
            return result

        return timed
