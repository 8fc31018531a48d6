"""The tables of a run in Markdown, and its picture."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import matplotlib  # noqa: F401  # before the minutes of measuring: it may be missing

from nystromformer.benchmark.efficiency import report as efficiency
from nystromformer.benchmark.efficiency.report import Cell, Measurements
from nystromformer.benchmark.gpu.attention import COPY, MATMUL, METHODS, OURS, CeilingRow
from nystromformer.benchmark.gpu.check import CheckRow, largest_ratio
from nystromformer.benchmark.gpu.settings import GpuBenchmark
from nystromformer.benchmark.gpu.training import SOFTMAX, TrainingRow
from nystromformer.benchmark.pieces import FAILED, LEFT_OUT, Outcome
from nystromformer.benchmark.timing import figure
from nystromformer.tables import markdown

DRY_RUN = "dry run: figures mean nothing"
MOVED = {"forward": 6, "both": 16}
"""What Nyström attention must move, in units of the N·D numbers of Q. Forward Q | K, V | Q, V, out, because its
landmarks need all of Q and K before an output can be written; backward Q, d_out | K, V, d_out, d_K, d_V | Q, d_out,
d_Q."""

R = TypeVar("R")


def rows_of(outcomes: Sequence[Outcome], kind: type[R]) -> list[R]:
    """All measured rows of a kind."""
    return [row for outcome in outcomes for row in outcome.rows if isinstance(row, kind)]


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """What the command fails for, a line each."""
    wrong = [
        f"{outcome.section}, {outcome.title}: {reason}"
        for outcome in outcomes
        for row in outcome.rows
        if isinstance(row, CheckRow)
        for reason in row.wrong
    ]
    return [*_pieces_of(outcomes, FAILED), *wrong]


def omissions(outcomes: Sequence[Outcome]) -> list[str]:
    """What was left out, and why."""
    return _pieces_of(outcomes, LEFT_OUT)


def _pieces_of(outcomes: Sequence[Outcome], status: str) -> list[str]:
    return [f"{each.section}, {each.title}: {each.reason}" for each in outcomes if each.status == status]


def report(outcomes: Sequence[Outcome], settings: GpuBenchmark, facts: Mapping[str, Any]) -> str:
    """The whole report."""
    sections: dict[str, Callable[[Sequence[Outcome], GpuBenchmark], Iterator[str]]] = {
        "Correctness": _check,
        "Ceilings": _ceilings,
        "Attention": _attention,
        "Pretraining steps": _training,
        "Left out": lambda outcomes, _: _listed(omissions(outcomes)),
        "Failed": lambda outcomes, _: _listed(failures(outcomes)),
    }
    parts = ["# Measured on a GPU", *([f"**{DRY_RUN}**"] if settings.dry_run else [])]
    parts += _listed([f"{key}: {value}" for key, value in facts.items()])
    for title, section in sections.items():
        if blocks := list(section(outcomes, settings)):
            parts += [f"## {title}", *blocks]
    return "\n\n".join(parts) + "\n"


def _check(outcomes: Sequence[Outcome], settings: GpuBenchmark) -> Iterator[str]:
    def case(row: CheckRow) -> tuple[str, int, int]:
        return row.dtype, row.num_landmarks, row.head_dim

    lines = []
    for key, group in groupby(sorted(rows_of(outcomes, CheckRow), key=case), key=case):
        same = list(group)
        shown = [
            f"{largest_ratio(same, name):.2f}" if any(name in row.ours for row in same) else "-"
            for name in ("out", "q", "k", "v", "filter")
        ]
        lines.append([*map(str, key), str(len(same)), str(sum(bool(row.wrong) for row in same)), *shown])
    if lines:
        yield (
            "Errors, ‖out − reference‖ / ‖reference‖ against tensor operations in float64, over those of tensor "
            f"operations in the same precision, the largest of the cases. Seeds from {settings.seed} on."
        )
        yield markdown(
            ["dtype", "landmarks", "head dim", "cases", "wrong", "out", "d_q", "d_k", "d_v", "d_filter"], lines
        )


def _ceilings(outcomes: Sequence[Outcome], settings: GpuBenchmark) -> Iterator[str]:
    if rows := rows_of(outcomes, CeilingRow):
        units = {COPY: (1e9, "GB/s, read and written"), MATMUL: (1e12, "TFLOP/s")}
        lines = [
            [row.name, f"{row.figure / units[row.name][0]:,.1f} {units[row.name][1]}", format(row.time, ".3f")]
            for row in rows
        ]
        yield markdown(["", "median", "ms (quartiles)"], lines)


def _attention(outcomes: Sequence[Outcome], settings: GpuBenchmark) -> Iterator[str]:
    rows = sorted(rows_of(outcomes, Cell), key=lambda row: (row.length, METHODS.index(row.method)))
    if not rows:
        return
    sizes, copy = settings.sizes, _ceiling(outcomes, COPY)
    yield (
        f"{sizes.num_heads} heads of {sizes.head_dim}, {sizes.num_landmarks} landmarks, convolution "
        f"{sizes.conv_kernel_size}, {sizes.dtype}, parameters in float32 under autocast. Ratios are the method's over "
        "ours. Of copy: the share of a copy's bandwidth, by the bytes that Nyström attention must move. Memory is the "
        "peak of forward and backward beyond the inputs."
    )
    ours = {row.length: row for row in rows if row.method == OURS}
    lines = []
    for row in rows:
        line = [str(row.length), str(sizes.rows(row.length)), row.method]
        for name in ("forward", "both", "memory"):
            value, mine = figure(row, name), ours.get(row.length)
            line.append(f"{value:,.1f}" if name == "memory" else format(getattr(row, name), ".3f"))
            line.append("-" if mine is None else f"{value / figure(mine, name):.2f}")
            if name in MOVED:
                nbytes = MOVED[name] * sizes.rows(row.length) * row.length * sizes.num_heads * sizes.head_dim
                rate = nbytes * settings.dtype.itemsize / (value / 1e3)
                line.append(_percent(rate / copy) if copy and row.method == OURS else "-")
        lines.append(line)
    header = ["tokens", "rows", "method", "forward, ms (quartiles)", "/ ours", "of copy"]
    yield markdown(
        [*header, "forward + backward, ms (quartiles)", "/ ours", "of copy", "peak memory, MiB", "/ ours"], lines
    )


def _training(outcomes: Sequence[Outcome], settings: GpuBenchmark) -> Iterator[str]:
    rows = sorted(rows_of(outcomes, TrainingRow), key=lambda row: (row.length, row.compiled, row.attention))
    if not rows:
        return
    yield (
        "BERT-base as the shipped configs have it, without recomputation in the backward; masked tokens alone, made "
        "up; forward, backward, clipping and fused AdamW under autocast; softmax by flash attention. MFU: 3 x the "
        "forward's operations over the time and the measured matrix product's rate."
    )
    softmax = {(row.length, row.compiled): row for row in rows if row.attention == SOFTMAX}
    rate = _ceiling(outcomes, MATMUL)
    lines = []
    for row in rows:
        other = softmax.get((row.length, row.compiled))
        line = [f"{row.rows} x {row.length}", row.attention, "compiled" if row.compiled else "eager", f"{row.time:.3f}"]
        line += [f"{row.tokens_per_second:,.0f}"]
        line.append("-" if other is None else f"{row.tokens_per_second / other.tokens_per_second:.2f}")
        line.append(_percent(row.flops / (row.time.median / 1e3) / rate) if rate else "-")
        lines.append([*line, f"{row.memory:,.0f}"])
    yield markdown(
        ["batch", "attention", "layers", "ms (quartiles)", "tokens/s", "/ softmax", "MFU", "peak memory, MiB"], lines
    )


def draw(outcomes: Sequence[Outcome], path: Path, header: str) -> None:
    """Times and memory of the attention over the length, where there are any."""
    if rows := sorted(rows_of(outcomes, Cell), key=lambda row: row.length):
        efficiency.draw(Measurements(rows), path, header)


def _listed(lines: Iterable[str]) -> Iterator[str]:
    if text := "\n".join(f"- {line}" for line in lines):
        yield text


def _ceiling(outcomes: Sequence[Outcome], name: str) -> float | None:
    return next((row.figure for row in rows_of(outcomes, CeilingRow) if row.name == name), None)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
