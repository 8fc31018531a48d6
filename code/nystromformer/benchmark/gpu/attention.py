"""The whole attention over the length: time and memory beside what it competes with, and its launches.

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
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.peers import (
    NystromAttentionPackage,
    Shape,
    fused_softmax,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.pieces import LeftOut, NoFigure, Piece, attempt
from nystromformer.benchmark.timing import (
    AttentionInputs,
    Passes,
    Timing,
    Work,
    attention_passes,
    peak_memory,
    time_side_by_side,
)

OURS, MASKED, TORCH = "nystrom, kernels", "nystrom, kernels, padding", "nystrom, torch"
FLASH, CUDNN = "softmax, flash", "softmax, cuDNN"
TRANSFORMERS, PACKAGE = "transformers", "nystrom-attention"
METHODS = (OURS, MASKED, TORCH, FLASH, CUDNN, TRANSFORMERS, PACKAGE)
_LAUNCHED = (OURS, TORCH, FLASH)
_BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}

_PADDED = 0.05
"""Of each row, where there is padding: what packed rows of pretraining have at most."""
_SLOWEST = 2.0
"""Seconds that a step may take: what is estimated to take longer is left out."""
_SOFTMAX_RATE = 2e14
"""Operations a second of fused softmax attention, for that estimate."""
_FIRST_LENGTHS = (4096, 32768, 8192, 1024)
"""Those that the goals speak of."""


@dataclass(frozen=True)
class AttentionRow:
    """One method at one length."""

    length: int
    rows: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward."""
    forward_memory: float
    """MiB at the peak, beyond the inputs."""
    both_memory: float


@dataclass(frozen=True)
class LaunchRow:
    """A forward of a single row: how long the host sees it take, launch by launch and as one CUDA graph."""

    length: int
    method: str
    device: Timing
    """Of the device's work alone."""
    called: Timing
    replayed: Timing | None
    """None where it could not be captured."""


def draw_inputs(settings: GpuBenchmark, rows: int, length: int) -> AttentionInputs:
    """Of so many rows, in the precision that is timed."""
    size = (rows, length, settings.sizes.num_heads, settings.sizes.head_dim)
    return AttentionInputs.draw(size, settings.device, settings.dtype)


def bytes_of_queries(settings: GpuBenchmark, rows: int, length: int) -> int:
    """Of Q, (B, H, N, D)."""
    sizes = settings.sizes
    return rows * sizes.num_heads * length * sizes.head_dim * settings.dtype.itemsize


def attention_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """The lengths that the goals speak of first."""
    sizes = settings.sizes
    first = [n for n in _FIRST_LENGTHS if n in sizes.lengths]
    for length in first:
        yield _of_batch(sizes.rows(length), length)
    yield _of_batch(1, sizes.longest, (OURS,))
    for length in sizes.launch_lengths:
        yield Piece("attention", f"launches, one row of {length} tokens", 5.0, measure_launches, (length,))
    for length in sizes.lengths:
        if length not in first:
            yield _of_batch(sizes.rows(length), length)
    for rows, length in sizes.batches:
        yield _of_batch(rows, length, _LAUNCHED)


def _of_batch(rows: int, length: int, methods: tuple[str, ...] = METHODS) -> Piece:
    # Softmax attention takes its time at great lengths.
    seconds = 8.0 if length <= 32768 or FLASH not in methods else 18.0
    return Piece("attention", f"{rows} x {length} tokens", seconds, measure_attention, (rows, length, methods))


def measure_attention(
    settings: GpuBenchmark, rows: int, length: int, methods: tuple[str, ...] = METHODS
) -> Sequence[AttentionRow | NoFigure]:
    """All methods on a batch, in turn."""
    torch.manual_seed(0)
    inputs = draw_inputs(settings, rows, length)
    built = {name: attempt(name, partial(_build_and_run, name, settings, inputs)) for name in methods}
    ready = {name: passes for name, passes in built.items() if isinstance(passes, Passes)}
    forwards = settings.time_in_turn({name: passes.forward for name, passes in ready.items()})
    boths = settings.time_in_turn({name: passes.both for name, passes in ready.items()})
    found: list[AttentionRow | NoFigure] = []
    for name, passes in built.items():
        if isinstance(passes, NoFigure):
            # Others may be unable, or need more memory than there is.
            excused = name == CUDNN or (passes.is_memory and name != OURS)
            found.append(replace(passes, failed=passes.failed and not excused))
        else:
            memory = peak_memory(passes.forward), peak_memory(passes.both)
            found.append(AttentionRow(length, rows, name, forwards[name], boths[name], *memory))
    return found


def measure_launches(settings: GpuBenchmark, length: int) -> Sequence[LaunchRow | NoFigure]:
    """Single rows, called and replayed."""
    inputs = draw_inputs(settings, 1, length)
    built = {name: attempt(name, partial(_build_and_run, name, settings, inputs)) for name in _LAUNCHED}
    # Those that cannot be run are named, with their reason, where all methods are timed.
    works = {name: method.forward for name, method in built.items() if isinstance(method, Passes)}
    on_device = settings.time_in_turn(works)
    graphs = {name: attempt(f"CUDA graph of {name}", partial(_capture, work, settings)) for name, work in works.items()}
    repeats = settings.sizes.repeats.most
    called = time_side_by_side(works, repeats, warmup=min(2, repeats - 1))
    replays = {name: graph.replay for name, graph in graphs.items() if not isinstance(graph, NoFigure)}
    replayed = time_side_by_side(replays, repeats)
    rows = [LaunchRow(length, name, on_device[name], called[name], replayed.get(name)) for name in works]
    # What no graph can hold is no failure: it runs without one.
    return [*rows, *(replace(graph, failed=False) for graph in graphs.values() if isinstance(graph, NoFigure))]


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
            num_heads=sizes.num_heads,
            head_dim=sizes.head_dim,
            num_landmarks=sizes.num_landmarks,
            conv_kernel_size=sizes.conv_kernel_size,
            implementation="torch" if name == TORCH else settings.implementation,
        ).to(settings.device)
        # One mask for all layers of a model.
        call = partial(module, mask=AttentionMask(_keep(inputs))) if name == MASKED else module
        return attention_passes(call, inputs, module.parameters(), autocast)
    if name in _BACKENDS:
        _check_softmax(name, settings, inputs)
        return attention_passes(fused_softmax, inputs, (), partial(_autocast_with, _BACKENDS[name], settings))
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


def _check_softmax(name: str, settings: GpuBenchmark, inputs: AttentionInputs) -> None:
    if name == CUDNN and settings.device.type != "cuda":
        raise LeftOut("cuDNN computes on CUDA devices alone")
    B, H, N, D = inputs.leaves[0].shape
    # Two products forward, five backward.
    seconds = 14.0 * B * H * N * N * D / _SOFTMAX_RATE
    if seconds > _SLOWEST:
        raise LeftOut(f"quadratic in the length: a step would take about {seconds:.0f} s")


@contextmanager
def _autocast_with(backend: SDPBackend, settings: GpuBenchmark) -> Iterator[None]:
    with settings.precision.autocast(), sdpa_kernel(backend):
        yield


def _build_and_run(name: str, settings: GpuBenchmark, inputs: AttentionInputs) -> Passes:
    """A method that has run once, which compiles what it needs."""
    method = build(name, settings, inputs)
    method.forward()
    method.both()
    return method


def _capture(work: Work, settings: GpuBenchmark) -> torch.cuda.CUDAGraph:
    if settings.device.type != "cuda":
        raise LeftOut("CUDA graphs need a CUDA device")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        work()
    return graph
