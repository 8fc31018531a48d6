"""What the measured times mean: shares of what the device can do, ratios, and whether goals are met."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nystromformer.benchmark.gpu.attention import GpuAttentionRow
from nystromformer.benchmark.gpu.ceilings import COPY, MATMUL, CeilingRow
from nystromformer.benchmark.gpu.check import FACTOR, CheckRow
from nystromformer.benchmark.gpu.methods import FLASH, OURS, PACKAGE, TRANSFORMERS, bytes_of_queries
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, TrainingRow
from nystromformer.benchmark.pieces import Outcome

SMALLEST_FORWARD = 4
"""Q, K, V and out, each once, in units of the N·D numbers of Q: what any attention must move."""
LEAST_FORWARD = 6
"""What the method takes: its landmarks need all of Q and K before an output can be written. Q | K, V | Q, V, out."""
LEAST_BACKWARD = 10
"""Q, d_out | K, V, d_out, d_K, d_V | Q, d_out, d_Q. The filter's gradient needs V and d_out, which are there."""
FORWARD, BOTH = "forward", "forward and backward"
UNITS = {
    "forward, 4 N·D": (FORWARD, SMALLEST_FORWARD),
    "forward, 6 N·D": (FORWARD, LEAST_FORWARD),
    "forward and backward, 16 N·D": (BOTH, LEAST_FORWARD + LEAST_BACKWARD),
}
"""Bytes that count as moved, in units of Q: what any attention must move; what this method must."""
MET, MISSED, UNKNOWN = "met", "missed", "not measured"
_PAPER_TOKENS = 500_000 * 256 * 512
"""Of the paper's pretraining: 0.5 M steps of 256 rows."""

R = TypeVar("R")


@dataclass(frozen=True)
class Throughput:
    """Bytes a second of a method's counted traffic."""

    rate: float
    of_copy: float | None
    """Of the measured bandwidth of a copy, where that was measured."""


@dataclass(frozen=True)
class Goal:
    """A figure that was to be reached."""

    text: str
    wanted: float
    reached: float | None
    at_most: bool = False
    """Whether less is better."""

    @property
    def state(self) -> str:
        if self.reached is None:
            return UNKNOWN
        met = self.reached <= self.wanted if self.at_most else self.reached >= self.wanted
        return MET if met else MISSED


@dataclass(frozen=True)
class Figures:
    """All outcomes so far, and what follows from them."""

    settings: GpuBenchmark
    outcomes: Sequence[Outcome]
    device_memory: float | None = None
    """Of the whole device, MiB; None for a CPU."""

    def rows(self, kind: type[R]) -> list[R]:
        return [row for outcome in self.outcomes for row in outcome.rows if isinstance(row, kind)]

    def ceiling(self, name: str) -> float | None:
        return next((row.figure for row in self.rows(CeilingRow) if row.name == name), None)

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second of a copy."""
        return self.ceiling(COPY)

    def attention(self, length: int, method: str = OURS, rows: int | None = None) -> GpuAttentionRow | None:
        """Of batches of as many rows as all lengths have, or of `rows` of them."""
        wanted = (self.settings.sizes.rows(length) if rows is None else rows, length, method)
        return next((row for row in self.rows(GpuAttentionRow) if (row.rows, row.length, row.method) == wanted), None)

    def lengths(self) -> list[int]:
        """At which our attention was measured beside others, on batches of as many tokens."""
        return [length for length in self.settings.sizes.lengths if self.attention(length) is not None]

    def throughput(self, row: GpuAttentionRow, count: str) -> Throughput | None:
        """How fast a method moves what is counted; None where it was not measured.

        Args:
            count: one of UNITS.
        """
        part, units = UNITS[count]
        time = row.forward if part == FORWARD else row.both
        if time is None:
            return None
        rate = units * bytes_of_queries(self.settings, row.rows, row.length) / (time.median / 1e3)
        return Throughput(rate, None if self.bandwidth is None else rate / self.bandwidth)

    def faster(self, length: int, other: str, part: str, rows: int | None = None) -> float | None:
        """The other method's time over ours."""
        return self._over(length, other, lambda row: _median(row, part), rows)

    def leaner(self, length: int, other: str, part: str, rows: int | None = None) -> float | None:
        """The other method's memory over ours."""
        return self._over(length, other, lambda row: row.forward_memory if part == FORWARD else row.both_memory, rows)

    def _over(
        self, length: int, other: str, value: Callable[[GpuAttentionRow], float | None], rows: int | None
    ) -> float | None:
        ours, theirs = self.attention(length, OURS, rows), self.attention(length, other, rows)
        if ours is None or theirs is None:
            return None
        mine, its = value(ours), value(theirs)
        return None if not mine or its is None else its / mine

    def use_of_device(self, row: TrainingRow) -> float | None:
        """Model FLOPs utilisation: counted operations a second over those of the measured matrix product."""
        rate = self.ceiling(MATMUL)
        if row.time is None or rate is None:
            return None
        return row.flops / (row.time.median / 1e3) / rate

    def training(self, length: int, attention: str, compiled: bool | None = None) -> float | None:
        """Tokens a second; None for `compiled`: the faster of eager and compiled layers."""
        speeds = [
            row.tokens_per_second
            for row in self.rows(TrainingRow)
            if (row.length, row.attention) == (length, attention) and compiled in (None, row.compiled)
        ]
        return max((speed for speed in speeds if speed is not None), default=None)

    def training_faster(self, length: int, compiled: bool | None = None) -> float | None:
        """Our tokens a second over those with softmax attention."""
        ours, softmax = (self.training(length, attention, compiled) for attention in (NYSTROM, SOFTMAX))
        return None if ours is None or softmax is None else ours / softmax

    def goals(self) -> list[Goal]:
        return [
            *self._check_goals(),
            *self._bandwidth_goals(),
            *self._ratio_goals(),
            *self._memory_goals(),
            *self._training_goals(),
        ]

    def _check_goals(self) -> Iterator[Goal]:
        rows = self.rows(CheckRow)
        for dtype in self.settings.sizes.check.dtypes:
            ratios = [ratio for row in rows if row.dtype == dtype for ratio in row.ratios.values()]
            text = f"errors in {dtype} over those of tensor operations, the largest of {len(ratios)}"
            yield Goal(text, FACTOR, worst(ratios) if ratios else None, at_most=True)

    def _bandwidth_goals(self) -> Iterator[Goal]:
        forward, _, both = UNITS
        for length in (4096, 32768, 65536, 131072):
            wanted = 0.35 if length == 4096 else 0.45
            yield Goal(
                f"share of the copy's bandwidth, {forward}, {length} tokens", wanted, self._of_copy(length, forward)
            )
        for length in (4096, 32768, 65536, 131072):
            yield Goal(f"share of the copy's bandwidth, {both}, {length} tokens", 0.3, self._of_copy(length, both))

    def _ratio_goals(self) -> Iterator[Goal]:
        for part in (FORWARD, BOTH):
            for length in (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072):
                wanted = {4096: 6.0, 8192: 12.0, 32768: 50.0}.get(length, 1.0)
                text = f"times faster than flash softmax, {part}, {length} tokens"
                yield Goal(text, wanted, self.faster(length, FLASH, part))
            for other in (TRANSFORMERS, PACKAGE):
                yield Goal(f"times faster than {other}, {part}, 4096 tokens", 8.0, self.faster(4096, other, part))
                memory = self.leaner(4096, other, part)
                yield Goal(f"times less memory than {other}, {part}, 4096 tokens", 6.0, memory)

    def _memory_goals(self) -> Iterator[Goal]:
        if self.device_memory is None:
            return
        sizes = self.settings.sizes
        row = self.attention(sizes.longest)
        share = None
        if row is not None and row.both_memory is not None:
            # Q, K, V and the gradient that comes in.
            inputs = 4 * bytes_of_queries(self.settings, row.rows, row.length) / 2**20
            share = (row.both_memory + inputs) / self.device_memory
        text = f"share of the device's memory, {BOTH}, one sequence of {sizes.longest} tokens, {sizes.num_heads} heads"
        yield Goal(text, 1.0, share, at_most=True)

    def _training_goals(self) -> Iterator[Goal]:
        for length, wanted in ((512, 1.0), (4096, 1.6)):
            text = f"times the tokens a second of pretraining with flash softmax, {length} tokens, each at its faster"
            yield Goal(text, wanted, self.training_faster(length))

    def _of_copy(self, length: int, count: str) -> float | None:
        row = self.attention(length)
        throughput = None if row is None else self.throughput(row, count)
        return None if throughput is None else throughput.of_copy


def hours_of_the_paper(row: TrainingRow) -> float | None:
    """Hours for as many tokens as the paper's pretraining has."""
    speed = row.tokens_per_second
    return None if speed is None else _PAPER_TOKENS / speed / 3600


def worst(values: Iterable[float]) -> float:
    """The largest; NaN where there is one."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)


def _median(row: GpuAttentionRow, part: str) -> float | None:
    time = row.forward if part == FORWARD else row.both
    return None if time is None else time.median
