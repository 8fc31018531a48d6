"""One attention alone: time and memory over the length, beside its public implementations and exact softmax;
attention_report.py makes tables of it.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.benchmark.implementations import IMPLEMENTATIONS, Sizes
from nystromformer.benchmark.peers import (
    MaterialisedNystrom,
    NystromAttentionPackage,
    Shape,
    SharedQueryKey,
    TransformersCore,
    WrittenOutSoftmax,
    elementwise,
    fused_softmax,
    installed,
)
from nystromformer.benchmark.timing import (
    Timing,
    attention_works,
    peak_memory,
    repeats_at,
    time_side_by_side,
)
from nystromformer.config import AttentionConfig
from nystromformer.config.attention.nystrom import NystromConfig
from nystromformer.config.ranges import MOST
from nystromformer.errors import UserError
from nystromformer.resources import check_room, free_memory

logger = logging.getLogger(__name__)

OURS, MASKED, BASE, CONTROL = "nystrom", "nystrom, padding mask", "authors' formulation", "elementwise control"
SOFTMAX, MASKED_SOFTMAX = "softmax (SDPA)", "softmax (SDPA), padding mask"
WRITTEN_OUT_LIMIT = 2048
"""Past it the N x N matrices of the written-out softmax and their gradients take gigabytes."""
PAPERS_TAPS = 33
"""Of the paper's convolution."""
FUSED_LIMIT = 4096
"""Past it one fused softmax step takes seconds on a CPU."""


Call = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PeersBenchmark:
    """What is compared.

    Nyström attention as the paper has it, with any number of landmarks, is measured with the paper's convolution, with
    and without a padding mask, and beside the authors' formulation; any other attention, and one with other settings,
    as it is configured.

    Raises:
        UserError: a length that the attention or some peer cannot take, or settings that are impossible at the longest.
    """

    config: AttentionConfig
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    batch: int = 1
    num_heads: int = 12
    head_dim: int = 64
    repeats: int = 15
    threads: int = 2

    def __post_init__(self) -> None:
        if count := self.papers_landmarks:
            wrong = [n for n in self.lengths if n <= count or n % count or n > MOST]
            if wrong:
                raise UserError(
                    f"--lengths: expected multiples of num_landmarks = {count}, larger than it, because the peers "
                    f"accept no others, and at most {MOST:,}; found {wrong}"
                )
            return
        if wrong := [n for n in self.lengths if not 1 <= n <= MOST]:
            raise UserError(f"--lengths: expected numbers from 1 to {MOST:,}, found {wrong}")
        for length in self.lengths:
            if reason := self.config.why_not_length(length):
                raise UserError(f"--lengths: {self.config.name} takes no input of {length} tokens: {reason}")
        for key, text in self.config.impossible_at(max(self.lengths)):
            raise UserError(f"--attention: {key}: {text.replace('max_seq_len', 'the longest of --lengths')}")

    @property
    def papers_landmarks(self) -> int | None:
        """How many the paper's Nyström attention has; None where the attention is another."""
        config = self.config
        if isinstance(config, NystromConfig) and config == NystromConfig(num_landmarks=config.num_landmarks):
            return config.num_landmarks
        return None

    def described(self) -> dict[str, Any]:
        """For the files."""
        sizes = {key: getattr(self, key) for key in ("lengths", "batch", "num_heads", "head_dim")}
        if count := self.papers_landmarks:
            sizes |= {"num_landmarks": count, "conv_kernel_size": PAPERS_TAPS}
        return sizes | {"repeats": self.repeats, "threads": self.threads}


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


def run_beside_peers(settings: PeersBenchmark) -> list[AttentionRow]:
    """Measure every method at every length, all methods of a length side by side."""
    torch.set_num_threads(settings.threads)
    check_memory(settings.batch, settings.lengths, settings.num_heads * settings.head_dim)
    rows = []
    methods = _papers_methods if settings.papers_landmarks else _methods
    for length in settings.lengths:
        rows += _measure_at(settings, length, methods(settings, length))
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


def _measure_at(settings: PeersBenchmark, length: int, methods: Mapping[str, nn.Module | Call]) -> list[AttentionRow]:
    """Measure the methods and the control side by side, at one length."""
    size = (settings.batch, length, settings.num_heads, settings.head_dim)
    forwards, boths = attention_works({**methods, CONTROL: elementwise}, size, _device())
    repeats = repeats_at(length, settings.repeats)
    with torch.no_grad():
        forward = time_side_by_side(forwards, repeats)
    both = time_side_by_side(boths, repeats)
    return [AttentionRow(length, name, forward[name], both[name], peak_memory(work)) for name, work in boths.items()]


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _papers_methods(settings: PeersBenchmark, length: int) -> dict[str, nn.Module | Call]:
    count, device = settings.papers_landmarks, _device()
    assert count is not None
    shape = Shape(settings.num_heads, settings.head_dim, count, PAPERS_TAPS, length)
    ours = create_attention("nystrom", **{key: value for key, value in vars(shape).items() if key != "length"})
    ours.to(device)
    keep_BN = (torch.arange(length, device=device) < length - length // 10).expand(settings.batch, -1)
    methods: dict[str, nn.Module | Call] = {
        OURS: ours,
        # The mask is built in each call, as in an encoder of one layer.
        MASKED: _Masked(ours, keep_BN),
        BASE: MaterialisedNystrom(shape),
        "transformers": TransformersCore(shape),
    }
    if installed("nystrom_attention"):
        methods["nystrom-attention"] = NystromAttentionPackage(shape)
    if length <= WRITTEN_OUT_LIMIT:
        methods["softmax, written out"] = WrittenOutSoftmax()
    if length <= FUSED_LIMIT:
        methods[SOFTMAX] = fused_softmax
        methods[MASKED_SOFTMAX] = lambda q, k, v: fused_softmax(q, k, v, keep_BN)
    return methods


def _methods(settings: PeersBenchmark, length: int) -> dict[str, nn.Module | Call]:
    config, sizes = settings.config, Sizes(settings.num_heads, settings.head_dim, length)
    heads = {"num_heads": settings.num_heads, "head_dim": settings.head_dim, "max_length": max(settings.lengths)}
    ours = create_attention(config, **heads)
    methods: dict[str, nn.Module | Call] = {config.name: SharedQueryKey(ours) if ours.needs.shared_query_key else ours}
    methods |= {one.name: one.build(config, sizes) for one in IMPLEMENTATIONS.get(config.name, ()) if one.is_installed}
    if length <= FUSED_LIMIT:
        methods[SOFTMAX] = fused_softmax
    return methods


class _Masked(nn.Module):
    """An attention with the same mask for every input."""

    def __init__(self, attention: nn.Module, keep_BN: Tensor) -> None:
        super().__init__()
        self.attention, self.keep_BN = attention, keep_BN

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = self.attention(q, k, v, AttentionMask(self.keep_BN))
        return out
