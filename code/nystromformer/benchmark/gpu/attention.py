"""The whole attention over the length: time and memory beside what it competes with, and its launches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from nystromformer.benchmark.gpu.clock import times_in_turn
from nystromformer.benchmark.gpu.methods import CUDNN, FLASH, METHODS, OURS, TORCH, Inputs, Method, build
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.pieces import NoFigure, Piece, attempt
from nystromformer.benchmark.timing import Timing, Work, peak_memory, time_side_by_side

_LAUNCHED = (OURS, TORCH, FLASH)


@dataclass(frozen=True)
class GpuAttentionRow:
    """One method at one length."""

    length: int
    rows: int
    method: str
    forward: Timing | None = None
    both: Timing | None = None
    """Forward and backward."""
    forward_memory: float | None = None
    """MiB at the peak, beyond the inputs."""
    both_memory: float | None = None
    reason: str = ""
    """Why there is no figure."""
    failed: bool = False


@dataclass(frozen=True)
class LaunchRow:
    """A forward of a single row: how long the host sees it take, launch by launch and as one CUDA graph."""

    length: int
    method: str
    device: Timing
    """Of the device's work alone."""
    called: Timing
    replayed: Timing | None
    reason: str = ""
    """Why it could not be captured."""


def measure_attention(
    settings: GpuBenchmark, rows: int, length: int, methods: tuple[str, ...] = METHODS
) -> Sequence[GpuAttentionRow]:
    """All methods on a batch, in turn."""
    torch.manual_seed(0)
    inputs = Inputs.drawn(settings, rows, length)
    found: dict[str, GpuAttentionRow] = {}
    ready: dict[str, Method] = {}
    memory: dict[str, tuple[float, float]] = {}
    for name in methods:
        method = attempt(partial(_built_and_run, name, settings, inputs))
        if isinstance(method, NoFigure):
            # Others may be unable, or need more memory than there is.
            failed = method.is_failure and name != CUDNN and not (method.is_memory and name != OURS)
            found[name] = GpuAttentionRow(length, rows, name, reason=method.reason, failed=failed)
        else:
            ready[name] = method
            memory[name] = peak_memory(method.forward), peak_memory(method.both)
    forwards = _times(settings, {name: method.forward for name, method in ready.items()})
    boths = _times(settings, {name: method.both for name, method in ready.items()})
    for name in ready:
        found[name] = GpuAttentionRow(length, rows, name, forwards[name], boths[name], *memory[name])
    return [found[name] for name in methods]


def measure_launches(settings: GpuBenchmark, length: int) -> Sequence[LaunchRow]:
    """Single rows, called and replayed."""
    inputs = Inputs.drawn(settings, 1, length)
    built = {name: attempt(partial(_built_and_run, name, settings, inputs)) for name in _LAUNCHED}
    # Those that cannot be run are named, with their reason, where all methods are timed.
    works = {name: method.forward for name, method in built.items() if isinstance(method, Method)}
    on_device = _times(settings, works)
    replays, reasons = _replays(works, settings)
    repeats = settings.sizes.repeats.most
    called = time_side_by_side(works, repeats, warmup=min(2, repeats - 1))
    replayed = time_side_by_side(replays, repeats) if replays else {}
    return [
        LaunchRow(length, name, on_device[name], called[name], replayed.get(name), reasons.get(name, ""))
        for name in works
    ]


def _of_batch(rows: int, length: int, methods: tuple[str, ...] = METHODS) -> Piece:
    # Softmax attention takes its time at great lengths.
    seconds = 8.0 if length <= 32768 or FLASH not in methods else 18.0
    return Piece("attention", f"{rows} x {length} tokens", seconds, measure_attention, (rows, length, methods))


def attention_pieces(settings: GpuBenchmark) -> Iterator[Piece]:
    """The lengths that the goals speak of first."""
    sizes = settings.sizes
    wanted: tuple[int, ...] = (4096, 32768, 8192, 1024)
    first = [n for n in wanted if n in sizes.lengths]
    for length in first:
        yield _of_batch(sizes.rows(length), length)
    yield _of_batch(1, sizes.longest, (OURS,))
    for length in sizes.launch_lengths:
        yield Piece("attention", f"launches, one row of {length} tokens", 5.0, measure_launches, (length,))
    for length in sizes.lengths:
        if length not in first:
            yield _of_batch(sizes.rows(length), length)
    for rows, length in sizes.batches:
        yield _of_batch(rows, length, (OURS, TORCH, FLASH))


def _built_and_run(name: str, settings: GpuBenchmark, inputs: Inputs) -> Method:
    """A method that has run once, which compiles what it needs."""
    method = build(name, settings, inputs)
    method.forward()
    method.both()
    return method


def _times(settings: GpuBenchmark, works: dict[str, Work]) -> dict[str, Timing]:
    return times_in_turn(works, settings.device, settings.sizes.repeats) if works else {}


def _replays(works: dict[str, Work], settings: GpuBenchmark) -> tuple[dict[str, Work], dict[str, str]]:
    """What could be captured, and why the rest could not."""
    if settings.device.type != "cuda":
        return {}, dict.fromkeys(works, "CUDA graphs need a CUDA device")
    replays: dict[str, Work] = {}
    reasons: dict[str, str] = {}
    for name, work in works.items():
        graph = torch.cuda.CUDAGraph()
        nothing = attempt(partial(_capture, work, graph))
        if nothing is None:
            replays[name] = graph.replay
        else:
            reasons[name] = nothing.reason
    return replays, reasons


def _capture(work: Work, graph: torch.cuda.CUDAGraph) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        work()
