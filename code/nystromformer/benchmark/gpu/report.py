"""The tables of a run, in Markdown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from nystromformer.benchmark.gpu.attention import GpuAttentionRow, LaunchRow
from nystromformer.benchmark.gpu.ceilings import CeilingRow
from nystromformer.benchmark.gpu.check import CheckRow
from nystromformer.benchmark.gpu.figures import (
    BOTH,
    FORWARD,
    UNITS,
    Figures,
    hours_of_the_paper,
    worst,
)
from nystromformer.benchmark.gpu.kernels import KernelRow, ProfileRow
from nystromformer.benchmark.gpu.methods import METHODS
from nystromformer.benchmark.gpu.summary import DRY_RUN, bare, ceiling, failures, number, omissions, percent, shown
from nystromformer.benchmark.gpu.training import NYSTROM, TrainingRow
from nystromformer.tables import markdown


def report(figures: Figures, facts: Mapping[str, Any]) -> str:
    """The whole report."""
    parts = [
        "# Measured on a GPU",
        *([f"**{DRY_RUN}**"] if figures.settings.dry_run else []),
        "\n".join(f"- {key}: {value}" for key, value in facts.items()),
        *_goals(figures),
        *_check(figures),
        *_ceilings(figures),
        *_kernels(figures),
        *_attention(figures),
        *_launches(figures),
        *_training(figures),
        *_listed("Failed", failures(figures)),
        *_listed("Left out", omissions(figures)),
    ]
    return "\n\n".join(parts) + "\n"


def _goals(figures: Figures) -> Iterator[str]:
    yield "## Goals"
    cells = [
        [goal.text, f"{'≤' if goal.at_most else '≥'} {goal.wanted:.3g}", number(goal.reached, ".3g"), goal.state]
        for goal in figures.goals()
    ]
    yield markdown(["", "goal", "found", ""], cells)


def _check(figures: Figures) -> Iterator[str]:
    rows = figures.rows(CheckRow)
    if not rows:
        return
    yield "## Correctness"
    yield (
        "‖out − reference‖ / ‖reference‖ against tensor operations in float64, largest over the cases; in brackets "
        f"over the error of tensor operations in the same precision. Seeds from {figures.settings.seed} on."
    )
    cells = []
    for key, group in groupby(sorted(rows, key=_case), key=_case):
        same = list(group)
        names = ("out", "q", "k", "v", "filter")
        cells.append([*map(str, key), str(len(same)), *(_worst(same, name) for name in names)])
    header = ["dtype", "landmarks", "head dim", "cases", "out", "d_q", "d_k", "d_v", "d_filter"]
    yield markdown(header, cells)


def _case(row: CheckRow) -> tuple[str, int, int]:
    return row.dtype, row.num_landmarks, row.head_dim


def _worst(rows: Iterable[CheckRow], name: str) -> str:
    having = [row for row in rows if name in row.ours]
    if not having:
        return "-"
    return f"{worst(row.ours[name] for row in having):.1e} ({worst(row.ratios[name] for row in having):.2f})"


def _ceilings(figures: Figures) -> Iterator[str]:
    rows = figures.rows(CeilingRow)
    if rows:
        yield "## Ceilings"
        yield markdown(["", "median", "ms (quartiles)"], [[row.name, ceiling(row), shown(row.time)] for row in rows])


def _kernels(figures: Figures) -> Iterator[str]:
    rows = figures.rows(KernelRow)
    if rows:
        yield "## Kernels"
        yield (
            "Each within a forward and backward, by events around its launch; bytes are those of all tensors that it "
            "is given, each once. What the whole takes beyond them are sums of parts and the gaps that events make."
        )
    for length, group in groupby(rows, key=lambda row: row.length):
        same = list(group)
        cells = []
        for row in same:
            rate = None if row.nbytes is None else row.nbytes / (row.time.median / 1e3)
            share = None if rate is None or figures.bandwidth is None else rate / figures.bandwidth
            moved = [number(row.nbytes and row.nbytes / 1e6, ".1f"), number(rate and rate / 1e9, ",.0f")]
            cells.append([bare(row.kernel), shown(row.time), *moved, percent(share)])
        yield f"{same[0].rows} x {length} tokens:"
        yield markdown(["kernel", "ms (quartiles)", "MB", "GB/s", "of copy"], cells)
    profiled = figures.rows(ProfileRow)
    if profiled:
        yield f"Everything that is launched, by PyTorch's profiler, {profiled[0].length} tokens:"
        yield markdown(["", "calls", "ms"], [[row.name, str(row.calls), f"{row.milliseconds:.4f}"] for row in profiled])


def _attention(figures: Figures) -> Iterator[str]:
    rows = sorted(figures.rows(GpuAttentionRow), key=lambda row: (row.length, row.rows, METHODS.index(row.method)))
    if not rows:
        return
    sizes = figures.settings.sizes
    yield "## Attention"
    yield (
        f"{sizes.num_heads} heads of {sizes.head_dim}, {sizes.num_landmarks} landmarks, convolution "
        f"{sizes.conv_kernel_size}, {sizes.dtype}, parameters in float32 under autocast; all methods of a batch in "
        "turn, on inputs that are not in the cache. Ratios are the method's over ours; shares of the copy's bandwidth "
        "count the N·D numbers that are named. Memory is the peak beyond the inputs."
    )
    for part, counts in ((FORWARD, list(UNITS)[:2]), (BOTH, list(UNITS)[2:])):
        cells = []
        for row in rows:
            time, memory = (row.forward, row.forward_memory) if part == FORWARD else (row.both, row.both_memory)
            if time is None:
                continue
            moved = [figures.throughput(row, count) for count in counts]
            cells.append(
                [
                    *(str(row.length), str(row.rows), row.method, shown(time)),
                    number(figures.faster(row.length, row.method, part, row.rows), ".2f"),
                    *("-" if each is None else f"{each.rate / 1e9:,.0f}" for each in moved),
                    *(percent(None if each is None else each.of_copy) for each in moved),
                    *(number(memory, ",.1f"), number(figures.leaner(row.length, row.method, part, row.rows), ".2f")),
                ]
            )
        counted = [count.rpartition(", ")[2] for count in counts]
        header = ["tokens", "rows", "method", "ms (quartiles)", "/ ours", *(f"GB/s, {each}" for each in counted)]
        header += [*(f"of copy, {each}" for each in counted), "MiB", "/ ours"]
        yield f"### {part[0].upper()}{part[1:]}"
        yield markdown(header, cells)


def _launches(figures: Figures) -> Iterator[str]:
    rows = figures.rows(LaunchRow)
    if rows:
        yield "## Launches"
        yield (
            "A forward of one row: the device's work alone, and as the host sees it, launch by launch and as one CUDA "
            "graph. What the host sees has its inputs in the cache."
        )
        cells = [
            [str(row.length), row.method, *(shown(time) for time in (row.device, row.called, row.replayed))]
            for row in rows
        ]
        yield markdown(["tokens", "method", "device, ms", "called, ms", "replayed, ms"], cells)


def _training(figures: Figures) -> Iterator[str]:
    rows = [row for row in figures.rows(TrainingRow) if row.time is not None]
    if not rows:
        return
    yield "## Pretraining steps"
    yield (
        "BERT-base as the shipped configs have it, without recomputation in the backward; masked tokens alone, made "
        "up; forward, backward, clipping and fused AdamW under autocast; softmax by flash attention. MFU: 3 x the "
        "forward's matrix products, 2 operations a multiplication, over the time and the measured matrix product's "
        "rate. Hours: for the tokens of 0.5 M steps of 256 x 512."
    )
    cells = []
    for row in sorted(rows, key=lambda row: (row.length, row.compiled)):
        way = "compiled" if row.compiled else "eager"
        cells.append(
            [
                *(f"{row.rows} x {row.length}", row.attention, way, f"{row.parameters / 1e6:.1f}", shown(row.time)),
                number(row.tokens_per_second, ",.0f"),
                number(figures.training_faster(row.length, row.compiled) if row.attention == NYSTROM else None, ".2f"),
                f"{row.flops / 1e12:.2f}",
                *(percent(figures.use_of_device(row)), number(row.memory, ",.0f")),
                number(hours_of_the_paper(row), ",.1f"),
            ]
        )
    header = [
        "batch",
        "attention",
        "layers",
        "M parameters",
        "ms (quartiles)",
        "tokens/s",
        "/ softmax",
        "TFLOP",
        "MFU",
        "MiB",
        "hours",
    ]
    yield markdown(header, cells)


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"## {title}"
        yield "\n".join(f"- {line}" for line in lines)
