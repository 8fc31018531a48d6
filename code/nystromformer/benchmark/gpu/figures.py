"""What the measured times mean: shares of what the device can do, ratios, and whether goals are met."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from nystromformer.benchmark.gpu.attention import FLASH, OURS, PACKAGE, TRANSFORMERS, AttentionRow, bytes_of_queries
from nystromformer.benchmark.gpu.bandwidth import COPY, MATMUL, CeilingRow
from nystromformer.benchmark.gpu.check import FACTOR, CheckRow
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.training import NYSTROM, SOFTMAX, TrainingRow
from nystromformer.benchmark.pieces import FAILED, LEFT_OUT, NoFigure, Outcome
from nystromformer.benchmark.timing import figure

SMALLEST_FORWARD = 4
"""Q, K, V and out, each once, in units of the N·D numbers of Q: what any attention must move."""
LEAST_FORWARD = 6
"""What the method takes: its landmarks need all of Q and K before an output can be written. Q | K, V | Q, V, out."""
LEAST_BACKWARD = 10
"""Q, d_out | K, V, d_out, d_K, d_V | Q, d_out, d_Q. The filter's gradient needs V and d_out, which are there."""
PARTS = {"forward": "forward", "both": "forward and backward"}
"""By the name of the times: what they are of."""
UNITS = {
    "forward, 4 N·D": ("forward", SMALLEST_FORWARD),
    "forward, 6 N·D": ("forward", LEAST_FORWARD),
    "forward and backward, 16 N·D": ("both", LEAST_FORWARD + LEAST_BACKWARD),
}
"""Bytes that count as moved, in units of Q: what any attention must move; what this method must."""
MET, MISSED, UNKNOWN = "met", "missed", "not measured"

R = TypeVar("R")


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

    def attention(self, length: int, method: str = OURS, rows: int | None = None) -> AttentionRow | None:
        """Of batches of as many rows as all lengths have, or of `rows` of them."""
        wanted = (self.settings.sizes.rows(length) if rows is None else rows, length, method)
        return next((row for row in self.rows(AttentionRow) if (row.rows, row.length, row.method) == wanted), None)

    def lengths(self) -> list[int]:
        """At which our attention was measured beside others, on batches of as many tokens."""
        return [length for length in self.settings.sizes.lengths if self.attention(length) is not None]

    def rate(self, row: AttentionRow, count: str) -> float:
        """Bytes a second of what is counted.

        Args:
            count: one of UNITS.
        """
        part, units = UNITS[count]
        return units * bytes_of_queries(self.settings, row.rows, row.length) / (figure(row, part) / 1e3)

    def of_copy(self, rate: float) -> float | None:
        """Of the measured bandwidth of a copy, where that was measured."""
        bandwidth = self.ceiling(COPY)
        return None if bandwidth is None else rate / bandwidth

    def over_ours(self, name: str, length: int, method: str, rows: int | None = None) -> float | None:
        """Another method's figure over ours.

        Args:
            name: of the row's field.
        """
        ours, theirs = self.attention(length, OURS, rows), self.attention(length, method, rows)
        if ours is None or theirs is None or not figure(ours, name):
            return None
        return figure(theirs, name) / figure(ours, name)

    def use_of_device(self, row: TrainingRow) -> float | None:
        """Model FLOPs utilisation: counted operations a second over those of the measured matrix product."""
        rate = self.ceiling(MATMUL)
        return None if rate is None else row.flops / (row.time.median / 1e3) / rate

    def training_faster(self, length: int, compiled: bool | None = None) -> float | None:
        """Our tokens a second over those with softmax attention; None for `compiled`: each at the faster of eager and
        compiled layers.
        """
        speeds: dict[str, list[float]] = {NYSTROM: [], SOFTMAX: []}
        for row in self.rows(TrainingRow):
            if row.length == length and compiled in (None, row.compiled):
                speeds[row.attention].append(row.tokens_per_second)
        return max(speeds[NYSTROM]) / max(speeds[SOFTMAX]) if all(speeds.values()) else None

    def goals(self) -> Iterator[Goal]:
        """What was to be reached, and how far it is."""
        checks = self.rows(CheckRow)
        for dtype in self.settings.sizes.check.dtypes:
            ratios = [ratio for row in checks if row.dtype == dtype for ratio in row.ratios.values()]
            text = f"errors in {dtype} over those of tensor operations, the largest of {len(ratios)}"
            yield Goal(text, FACTOR, worst(ratios) if ratios else None, at_most=True)
        four, _, sixteen = UNITS
        for count in (four, sixteen):
            for length in (4096, 32768, 65536, 131072):
                wanted = 0.3 if count == sixteen else 0.35 if length == 4096 else 0.45
                row = self.attention(length)
                share = None if row is None else self.of_copy(self.rate(row, count))
                yield Goal(f"share of the copy's bandwidth, {count}, {length} tokens", wanted, share)
        for name, part in PARTS.items():
            for length in (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072):
                text = f"times faster than flash softmax, {part}, {length} tokens"
                wanted = {4096: 6.0, 8192: 12.0, 32768: 50.0}.get(length, 1.0)
                yield Goal(text, wanted, self.over_ours(name, length, FLASH))
            for other in (TRANSFORMERS, PACKAGE):
                text = f"than {other}, {part}, 4096 tokens"
                yield Goal(f"times faster {text}", 8.0, self.over_ours(name, 4096, other))
                yield Goal(f"times less memory {text}", 6.0, self.over_ours(f"{name}_memory", 4096, other))
        if self.device_memory is not None:
            yield self._memory_goal(self.device_memory)
        for length, wanted in ((512, 1.0), (4096, 1.6)):
            text = f"times the tokens a second of pretraining with flash softmax, {length} tokens, each at its faster"
            yield Goal(text, wanted, self.training_faster(length))

    def _memory_goal(self, device_memory: float) -> Goal:
        sizes = self.settings.sizes
        row = self.attention(sizes.longest)
        share = None
        if row is not None:
            # Q, K, V and the gradient that comes in.
            inputs = 4 * bytes_of_queries(self.settings, row.rows, row.length) / 2**20
            share = (row.both_memory + inputs) / device_memory
        one = f"one sequence of {sizes.longest} tokens, {sizes.num_heads} heads"
        return Goal(f"share of the device's memory, {PARTS['both']}, {one}", 1.0, share, at_most=True)

    def failures(self) -> list[str]:
        """What the command fails for, a line each."""
        wrong = [
            f"check, {outcome.title}: {reason}"
            for outcome in self.outcomes
            for row in outcome.rows
            if isinstance(row, CheckRow)
            for reason in row.wrong
        ]
        return [*self._of_pieces(FAILED), *wrong, *self._without_figure(failed=True)]

    def omissions(self) -> list[str]:
        """What was left out, and why."""
        return [*self._of_pieces(LEFT_OUT), *self._without_figure(failed=False)]

    def _of_pieces(self, status: str) -> list[str]:
        return [f"{each.section}, {each.title}: {each.reason}" for each in self.outcomes if each.status == status]

    def _without_figure(self, failed: bool) -> list[str]:
        return [
            f"{outcome.section}, {outcome.title}, {row.name}: {row.reason}"
            for outcome in self.outcomes
            for row in outcome.rows
            if isinstance(row, NoFigure) and row.failed == failed
        ]


def worst(values: Iterable[float]) -> float:
    """The largest; NaN where there is one."""
    return max(values, key=lambda value: math.inf if math.isnan(value) else value)
