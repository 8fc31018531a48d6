"""The whole attention over the length: time and memory beside what it competes with, and its launches.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.gpu.clock import times_in_turn
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.peers import (
    NystromAttentionPackage,
    Shape,
    fused_softmax,
    is_installed,
    transformers_nystrom,
)
from nystromformer.benchmark.pieces import LeftOut, NoFigure, Piece, attempt
from nystromformer.benchmark.timing import Timing, Work, peak_memory, time_side_by_side

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


@dataclass(frozen=True)
class Inputs:
    """Q, K, V and a gradient of the output, in one precision and in the layout of an encoder's projections."""

    q_BHND: Tensor
    k_BHND: Tensor
    v_BHND: Tensor
    upstream_BHND: Tensor

    @staticmethod
    def draw(settings: GpuBenchmark, rows: int, length: int) -> "Inputs":
        size = (rows, length, settings.sizes.num_heads, settings.sizes.head_dim)
        x = [torch.randn(size, device=settings.device, dtype=settings.dtype).transpose(1, 2) for _ in range(4)]
        q, k, v = (each.requires_grad_() for each in x[:3])
        return Inputs(q, k, v, x[3])


@dataclass(frozen=True)
class Method:
    """Calls of one method on given inputs."""

    forward: Work
    """Without gradients."""
    both: Work
    """Forward, and the gradients of Q, K, V and the filter."""


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
    inputs = Inputs.draw(settings, rows, length)
    found: dict[str, AttentionRow | NoFigure] = {}
    ready: dict[str, Method] = {}
    memory: dict[str, tuple[float, float]] = {}
    for name in methods:
        method = attempt(name, partial(_build_and_run, name, settings, inputs))
        if isinstance(method, NoFigure):
            # Others may be unable, or need more memory than there is.
            excused = name == CUDNN or (method.is_memory and name != OURS)
            found[name] = replace(method, failed=method.failed and not excused)
        else:
            ready[name] = method
            memory[name] = peak_memory(method.forward), peak_memory(method.both)
    forwards = _times(settings, {name: method.forward for name, method in ready.items()})
    boths = _times(settings, {name: method.both for name, method in ready.items()})
    for name in ready:
        found[name] = AttentionRow(length, rows, name, forwards[name], boths[name], *memory[name])
    return [found[name] for name in methods]


def measure_launches(settings: GpuBenchmark, length: int) -> Sequence[LaunchRow | NoFigure]:
    """Single rows, called and replayed."""
    inputs = Inputs.draw(settings, 1, length)
    built = {name: attempt(name, partial(_build_and_run, name, settings, inputs)) for name in _LAUNCHED}
    # Those that cannot be run are named, with their reason, where all methods are timed.
    works = {name: method.forward for name, method in built.items() if isinstance(method, Method)}
    on_device = _times(settings, works)
    graphs = {name: attempt(f"CUDA graph of {name}", partial(_capture, work, settings)) for name, work in works.items()}
    repeats = settings.sizes.repeats.most
    called = time_side_by_side(works, repeats, warmup=min(2, repeats - 1))
    replays = {name: graph.replay for name, graph in graphs.items() if not isinstance(graph, NoFigure)}
    replayed = time_side_by_side(replays, repeats)
    rows = [LaunchRow(length, name, on_device[name], called[name], replayed.get(name)) for name in works]
    # What no graph can hold is no failure: it runs without one.
    return [*rows, *(replace(graph, failed=False) for graph in graphs.values() if isinstance(graph, NoFigure))]


def build(name: str, settings: GpuBenchmark, inputs: Inputs) -> Method:
    """A method on these inputs, parameters in float32 under autocast, as in training.

    Raises:
        LeftOut: it is not there, or would take too long.
    """
    sizes, length = settings.sizes, inputs.q_BHND.shape[2]
    shape = Shape(sizes.num_heads, sizes.head_dim, sizes.num_landmarks, sizes.conv_kernel_size, length)
    leaves = [inputs.q_BHND, inputs.k_BHND, inputs.v_BHND]
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
        return _method(call, leaves, inputs, settings, list(module.parameters()))
    if name in _BACKENDS:
        _check_softmax(name, settings, inputs)
        return _method(fused_softmax, leaves, inputs, settings, [], _BACKENDS[name])
    if not is_installed(name.replace("-", "_")):
        raise LeftOut(f"{name} is not installed")
    if name == TRANSFORMERS:
        module = transformers_nystrom(shape).to(settings.device)
        return _method(module, leaves, inputs, settings, list(module.core.conv.parameters()))
    package = NystromAttentionPackage(shape).to(settings.device)
    # It takes Q, K and V as one tensor, which its projection would write: joining them is not its work.
    joined = torch.cat([x.detach().transpose(1, 2).flatten(2) for x in leaves], dim=-1).requires_grad_()
    return _method(package.joined, [joined], inputs, settings, list(package.core.res_conv.parameters()))


def _keep(inputs: Inputs) -> Tensor:
    B, _, N, _ = inputs.q_BHND.shape
    tokens_N = torch.arange(N, device=inputs.q_BHND.device)
    return (tokens_N < N - int(_PADDED * N)).expand(B, N).clone()


def _check_softmax(name: str, settings: GpuBenchmark, inputs: Inputs) -> None:
    if name == CUDNN and settings.device.type != "cuda":
        raise LeftOut("cuDNN computes on CUDA devices alone")
    B, H, N, D = inputs.q_BHND.shape
    # Two products forward, five backward.
    seconds = 14.0 * B * H * N * N * D / _SOFTMAX_RATE
    if seconds > _SLOWEST:
        raise LeftOut(f"quadratic in the length: a step would take about {seconds:.0f} s")


def _method(
    call: Callable[..., Tensor],
    leaves: list[Tensor],
    inputs: Inputs,
    settings: GpuBenchmark,
    parameters: list[nn.Parameter],
    backend: SDPBackend | None = None,
) -> Method:
    def attended() -> Tensor:
        with settings.precision.autocast(), nullcontext() if backend is None else sdpa_kernel(backend):
            return call(*leaves)

    def both() -> object:
        out = attended()
        upstream = inputs.upstream_BHND if out.ndim == 4 else inputs.upstream_BHND.transpose(1, 2).flatten(2)
        return torch.autograd.grad(out, [*leaves, *parameters], upstream.to(out.dtype))

    return Method(torch.no_grad()(attended), both)


def _build_and_run(name: str, settings: GpuBenchmark, inputs: Inputs) -> Method:
    """A method that has run once, which compiles what it needs."""
    method = build(name, settings, inputs)
    method.forward()
    method.both()
    return method


def _times(settings: GpuBenchmark, works: dict[str, Work]) -> dict[str, Timing]:
    return times_in_turn(works, settings.device, settings.sizes.repeats)


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
