"""The main figures of a run on one screen, and what failed or was left out."""

from collections.abc import Iterator
from itertools import groupby

from nystromformer.benchmark.gpu.attention import GpuAttentionRow, LaunchRow
from nystromformer.benchmark.gpu.ceilings import COPY, CeilingRow
from nystromformer.benchmark.gpu.check import CheckRow
from nystromformer.benchmark.gpu.figures import (
    BOTH,
    FORWARD,
    MET,
    MISSED,
    UNITS,
    UNKNOWN,
    Figures,
    hours_of_the_paper,
    worst,
)
from nystromformer.benchmark.gpu.kernels import KernelRow
from nystromformer.benchmark.gpu.methods import METHODS, OURS
from nystromformer.benchmark.gpu.training import TrainingRow
from nystromformer.benchmark.pieces import FAILED, LEFT_OUT
from nystromformer.benchmark.timing import Timing
from nystromformer.tables import Column, aligned

DRY_RUN = "dry run: figures mean nothing"
_SHOWN = 12
"""Failures that the summary tells."""


def summary(figures: Figures) -> str:
    """The main figures on one screen."""
    lines = [DRY_RUN] if figures.settings.dry_run else []
    for row in figures.rows(CeilingRow):
        lines.append(f"{row.name}: {ceiling(row)}")
    checks = figures.rows(CheckRow)
    if checks:
        wrong = sum(bool(row.wrong) for row in checks)
        most = worst(ratio for row in checks for ratio in row.ratios.values())
        lines.append(f"check: {len(checks)} comparisons, {wrong} wrong; errors up to {most:.2f} x tensor operations'")
    lines += _kernels_summary(figures)
    lines += _attention_summary(figures)
    for launch in figures.rows(LaunchRow):
        replayed = "-" if launch.replayed is None else f"{launch.replayed.median:.3f}"
        called = f"{launch.called.median:.3f} ms called, {replayed} as a graph"
        lines.append(f"one row of {launch.length}, {launch.method}: {called}")
    for step in figures.rows(TrainingRow):
        if step.tokens_per_second is not None:
            way = f"{step.attention}{', compiled' if step.compiled else ''}"
            used = percent(figures.use_of_device(step))
            lines.append(
                f"training, {step.rows} x {step.length}, {way}: {step.tokens_per_second:,.0f} tokens/s, MFU {used}, "
                f"{number(step.memory, ',.0f')} MiB, the paper's run {number(hours_of_the_paper(step), ',.0f')} hours"
            )
    states = [goal.state for goal in figures.goals()]
    lines.append("goals: " + ", ".join(f"{states.count(state)} {state}" for state in (MET, MISSED, UNKNOWN)))
    lines += [f"  missed: {g.text}: {g.reached:.2f} for {g.wanted:.2f}" for g in figures.goals() if g.state == MISSED]
    lines.append(f"left out: {len(omissions(figures))}, each with its reason in gpu.md")
    failed = failures(figures)
    lines += [f"FAILED: {line}" for line in failed[:_SHOWN]]
    return "\n".join([*lines, *([f"and {len(failed) - _SHOWN} more in gpu.md"] if len(failed) > _SHOWN else [])])


def _kernels_summary(figures: Figures) -> Iterator[str]:
    for length, group in groupby(figures.rows(KernelRow), key=lambda row: row.length):
        times = ", ".join(f"{bare(row.kernel)} {row.time.median:.3f}" for row in group)
        yield f"kernels at {length} tokens, ms: {times}"


def _attention_summary(figures: Figures) -> list[str]:
    others = [name for name in METHODS if name != OURS]
    forward, _, both = UNITS
    columns = [Column("tokens", 8)]
    for heading in ("forward ms", "fwd+bwd ms"):
        columns += [Column(heading, 10, gap=1), Column("of copy", 7, gap=1)]
    columns.append(Column(f"times faster, forward/fwd+bwd: {' | '.join(others)}", is_text=True))
    cells = []
    for length in (*figures.lengths(), figures.settings.sizes.longest):
        row = figures.attention(length)
        if row is None or row.forward is None or row.both is None:
            continue
        times = [f"{timing.median:.3f}" for timing in (row.forward, row.both)]
        shares = [_of_copy(figures, row, count) for count in (forward, both)]
        ratios = [
            "/".join(number(figures.faster(length, name, part), ".1f") for part in (FORWARD, BOTH)) for name in others
        ]
        cells.append([str(length), times[0], shares[0], times[1], shares[1], " | ".join(ratios)])
    return aligned(columns, cells) if cells else []


def _of_copy(figures: Figures, row: GpuAttentionRow, count: str) -> str:
    moved = figures.throughput(row, count)
    return percent(None if moved is None else moved.of_copy)


def failures(figures: Figures) -> list[str]:
    """What the command fails for, a line each."""
    lines = [f"{o.section}, {o.title}: {o.reason}" for o in figures.outcomes if o.status == FAILED]
    for outcome in figures.outcomes:
        for row in outcome.rows:
            if isinstance(row, CheckRow):
                lines += [f"check, {outcome.title}: {wrong}" for wrong in row.wrong]
            elif isinstance(row, (GpuAttentionRow, TrainingRow)) and row.failed:
                method = row.method if isinstance(row, GpuAttentionRow) else row.attention
                lines.append(f"{outcome.section}, {outcome.title}, {method}: {row.reason}")
    return lines


def omissions(figures: Figures) -> list[str]:
    """What was left out, and why."""
    lines = [f"{o.section}, {o.title}: {o.reason}" for o in figures.outcomes if o.status == LEFT_OUT]
    for outcome in figures.outcomes:
        for row in outcome.rows:
            if isinstance(row, (GpuAttentionRow, TrainingRow)) and row.reason and not row.failed:
                method = row.method if isinstance(row, GpuAttentionRow) else row.attention
                lines.append(f"{outcome.section}, {outcome.title}, {method}: {row.reason}")
            elif isinstance(row, LaunchRow) and row.reason:
                lines.append(f"{outcome.section}, {outcome.title}, CUDA graph of {row.method}: {row.reason}")
    return lines


def ceiling(row: CeilingRow) -> str:
    """Bytes or operations a second."""
    if row.name == COPY:
        return f"{row.figure / 1e9:,.0f} GB/s, read and written"
    return f"{row.figure / 1e12:,.1f} TFLOP/s"


def bare(kernel: str) -> str:
    """A kernel's name without what all of them end in."""
    return kernel.removesuffix("_kernel")


def shown(timing: Timing | None) -> str:
    """Median and quartiles."""
    return "-" if timing is None else f"{timing.median:.3f} ({timing.low:.3f}-{timing.high:.3f})"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
