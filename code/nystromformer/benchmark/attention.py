"""The attention alone: time and memory over the length, beside its peers; attention_report.py makes tables of it.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.peers import (
    MaterialisedNystrom,
    NystromAttentionPackage,
    Shape,
    TransformersCore,
    WrittenOutSoftmax,
    fused_softmax,
    installed,
)
from nystromformer.benchmark.timing import (
    Timing,
    Work,
    forward_and_backward,
    peak_memory,
    repeats_at,
    time_side_by_side,
)
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.resources import check_room, free_memory

logger = logging.getLogger(__name__)

OURS, MASKED, BASE, CONTROL = "nystrom", "nystrom, padding mask", "authors' formulation", "elementwise control"
SOFTMAX, MASKED_SOFTMAX = "softmax (SDPA)", "softmax (SDPA), padding mask"
WRITTEN_OUT_LIMIT = 2048
"""Past it the N x N matrices of the written-out softmax and their gradients take gigabytes."""
FUSED_LIMIT = 4096
"""Past it one fused softmax step takes seconds on a CPU."""


Call = Callable[[Tensor, Tensor, Tensor], Tensor]


class Sized(Protocol):
    """Of what size the inputs are, and how often they are measured."""

    @property
    def batch(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def repeats(self) -> int: ...


@dataclass(frozen=True)
class AttentionBenchmark:
    """What is measured.

    Raises:
        UserError: a length that some peer cannot take.
    """

    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    batch: int = 1
    num_heads: int = 12
    head_dim: int = 64
    num_landmarks: int = 64
    conv_kernel_size: int | None = 33
    repeats: int = 15
    threads: int = 2

    def __post_init__(self) -> None:
        wrong = [n for n in self.lengths if n <= self.num_landmarks or n % self.num_landmarks or n > MOST]
        if wrong:
            raise UserError(
                f"--lengths: expected multiples of num_landmarks = {self.num_landmarks}, larger than it, because the "
                f"peers accept no others, and at most {MOST:,}; found {wrong}"
            )


@dataclass(frozen=True)
class AttentionRow:
    """One method at one length."""

    length: int
    method: str
    forward: Timing
    both: Timing
    """Forward and backward."""
    memory: float
    """MiB at the peak of forward and backward."""


def parse_lengths(text: str, flag: str = "--lengths") -> tuple[int, ...]:
    """Of a flag, such as 512,1024.

    Raises:
        UserError: no numbers.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{flag}: expected numbers separated by commas, found {text[:60]!r}") from None


def run_attention(settings: AttentionBenchmark) -> list[AttentionRow]:
    """Measure every method at every length, all methods of a length side by side."""
    torch.set_num_threads(settings.threads)
    check_memory(settings.batch, settings.lengths, settings.num_heads * settings.head_dim)
    rows = []
    for length in settings.lengths:
        rows += measure_at(settings, length, _methods(settings, length, _device()))
        logger.info("%d tokens measured", length)
    return rows


def check_memory(batch: int, lengths: Sequence[int], width: int) -> None:
    """Check that there is memory for queries, keys, values, their gradients and that of the output.

    Raises:
        UserError: says how much they take, and how much there is.
    """
    length = max(lengths)
    size = 7.0 * 4 * batch * length * width
    on_gpu = torch.cuda.is_available()
    check_room(
        f"--batch {batch} --lengths {length}: this",
        {"queries, keys, values and gradients": size},
        free_memory(torch.device("cuda")) if on_gpu else free_memory(swap=True),
        "on the GPU" if on_gpu else "on this machine",
        "lower one of the two",
    )


def measure_at(settings: Sized, length: int, methods: Mapping[str, nn.Module | Call]) -> list[AttentionRow]:
    """Measure the methods and the control side by side, at one length."""
    torch.manual_seed(0)
    device = _device()
    size = (settings.batch, length, settings.num_heads, settings.head_dim)
    # In the layout in which an encoder's projections give them.
    q, k, v = (torch.randn(size, device=device).transpose(1, 2).requires_grad_() for _ in range(3))
    upstream = torch.randn(size, device=device).transpose(1, 2)
    forwards: dict[str, Work] = {}
    boths: dict[str, Work] = {}
    for name, call in (*methods.items(), (CONTROL, lambda q, k, v: q * k + v)):
        module = call.to(device) if isinstance(call, nn.Module) else nn.Module()
        wanted = [q, k, v, *(p for p in module.parameters() if p.requires_grad)]
        forwards[name] = _forward(call, (q, k, v))
        boths[name] = forward_and_backward(call, (q, k, v), wanted, upstream)
    repeats = repeats_at(length, settings.repeats)
    with torch.no_grad():
        forward = time_side_by_side(forwards, repeats)
    both = time_side_by_side(boths, repeats)
    return [AttentionRow(length, name, forward[name], both[name], peak_memory(work)) for name, work in boths.items()]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _methods(settings: AttentionBenchmark, length: int, device: torch.device) -> dict[str, nn.Module | Call]:
    heads = {"num_heads": settings.num_heads, "head_dim": settings.head_dim}
    ours = create_attention(
        "nystrom", **heads, num_landmarks=settings.num_landmarks, conv_kernel_size=settings.conv_kernel_size
    ).to(device)
    keep_BN = (torch.arange(length, device=device) < length - length // 10).expand(settings.batch, -1)
    shape = Shape(
        **heads, num_landmarks=settings.num_landmarks, conv_kernel_size=settings.conv_kernel_size, length=length
    )
    modules: dict[str, nn.Module] = {BASE: MaterialisedNystrom(shape), "transformers": TransformersCore(shape)}
    if installed("nystrom_attention"):
        modules["nystrom-attention"] = NystromAttentionPackage(shape)
    if length <= WRITTEN_OUT_LIMIT:
        modules["softmax, written out"] = WrittenOutSoftmax()
    methods: dict[str, nn.Module | Call] = {
        OURS: ours,
        # The mask is built in each call, as in an encoder of one layer.
        MASKED: _Masked(ours, keep_BN),
        **modules,
    }
    if length <= FUSED_LIMIT:
        methods[SOFTMAX] = fused_softmax
        methods[MASKED_SOFTMAX] = lambda q, k, v: fused_softmax(q, k, v, keep_BN)
    return methods


class _Masked(nn.Module):
    """An attention with the same mask for every input."""

    def __init__(self, attention: nn.Module, keep_BN: Tensor) -> None:
        super().__init__()
        self.attention, self.keep_BN = attention, keep_BN

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.attention(q, k, v, AttentionMask(self.keep_BN))
        return out


def _forward(call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Work:
    return lambda: call(*inputs)
