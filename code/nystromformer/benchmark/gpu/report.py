"""The tables of a run in Markdown, its main figures on one screen, and its pictures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib  # noqa: F401  # before the minutes of measuring: it may be missing

from nystromformer.benchmark.gpu.attention import METHODS, OURS, AttentionRow, LaunchRow
from nystromformer.benchmark.gpu.bandwidth import COPY, CeilingRow, KernelRow, ProfileRow
from nystromformer.benchmark.gpu.check import CheckRow
from nystromformer.benchmark.gpu.figures import MET, MISSED, PARTS, UNITS, UNKNOWN, Figures, worst
from nystromformer.benchmark.gpu.training import NYSTROM, TrainingRow
from nystromformer.benchmark.results import new_figure
from nystromformer.benchmark.timing import Timing, figure
from nystromformer.files.writing import write_figure
from nystromformer.tables import Column, aligned, markdown

DRY_RUN = "dry run: figures mean nothing"
_MOST_FAILURES = 12
"""That the summary names."""


def summary(figures: Figures) -> str:
    """The main figures on one screen."""
    lines = [DRY_RUN] if figures.settings.dry_run else []
    lines += [f"{row.name}: {_ceiling(row)}" for row in figures.rows(CeilingRow)]
    if checks := figures.rows(CheckRow):
        wrong = sum(bool(row.wrong) for row in checks)
        most = worst(ratio for row in checks for ratio in row.ratios.values())
        lines.append(f"check: {len(checks)} comparisons, {wrong} wrong; errors up to {most:.2f} x tensor operations'")
    for length, group in groupby(figures.rows(KernelRow), key=lambda row: row.length):
        times = ", ".join(f"{_bare(row.kernel)} {row.time.median:.3f}" for row in group)
        lines.append(f"kernels at {length} tokens, ms: {times}")
    lines += _attention_summary(figures)
    for launch in figures.rows(LaunchRow):
        replayed = "-" if launch.replayed is None else f"{launch.replayed.median:.3f}"
        called = f"{launch.called.median:.3f} ms called, {replayed} as a graph"
        lines.append(f"one row of {launch.length}, {launch.method}: {called}")
    for step in figures.rows(TrainingRow):
        way = f"{step.attention}{', compiled' if step.compiled else ''}"
        lines.append(
            f"training, {step.rows} x {step.length}, {way}: {step.tokens_per_second:,.0f} tokens/s, MFU "
            f"{_percent(figures.use_of_device(step))}, {step.memory:,.0f} MiB, the paper's run "
            f"{step.hours_of_the_paper:,.0f} hours"
        )
    goals = list(figures.goals())
    states = [goal.state for goal in goals]
    lines.append("goals: " + ", ".join(f"{states.count(state)} {state}" for state in (MET, MISSED, UNKNOWN)))
    lines += [
        f"  missed: {goal.text}: {goal.reached:.2f} for {goal.wanted:.2f}" for goal in goals if goal.state == MISSED
    ]
    lines.append(f"left out: {len(figures.omissions())}, each with its reason in gpu.md")
    failed = figures.failures()
    lines += [f"FAILED: {line}" for line in failed[:_MOST_FAILURES]]
    more = len(failed) - _MOST_FAILURES
    return "\n".join([*lines, *([f"and {more} more in gpu.md"] if more > 0 else [])])


def _attention_summary(figures: Figures) -> list[str]:
    others = [name for name in METHODS if name != OURS]
    columns = [Column("tokens", 8)]
    for heading in ("forward ms", "fwd+bwd ms"):
        columns += [Column(heading, 10, gap=1), Column("of copy", 7, gap=1)]
    columns.append(Column(f"times faster, forward/fwd+bwd: {' | '.join(others)}", is_text=True))
    forward, _, both = UNITS
    lines = []
    for length in (*figures.lengths(), figures.settings.sizes.longest):
        if (row := figures.attention(length)) is not None:
            times = f"{row.forward.median:.3f}", f"{row.both.median:.3f}"
            shares = [_percent(figures.of_copy(figures.rate(row, count))) for count in (forward, both)]
            ratios = [
                "/".join(_shown(figures.over_ours(part, length, name), ".1f") for part in PARTS) for name in others
            ]
            lines.append([str(length), times[0], shares[0], times[1], shares[1], " | ".join(ratios)])
    return aligned(columns, lines) if lines else []


def report(figures: Figures, facts: Mapping[str, Any]) -> str:
    """The whole report."""
    sections: dict[str, Callable[[Figures], Iterator[str]]] = {
        "Goals": _goals,
        "Correctness": _check,
        "Ceilings": _ceilings,
        "Kernels": _kernels,
        "Attention": _attention,
        "Launches": _launches,
        "Pretraining steps": _training,
        "Failed": lambda figures: _listed(figures.failures()),
        "Left out": lambda figures: _listed(figures.omissions()),
    }
    parts = ["# Measured on a GPU", *([f"**{DRY_RUN}**"] if figures.settings.dry_run else [])]
    parts += _listed([f"{key}: {value}" for key, value in facts.items()])
    for title, section in sections.items():
        if blocks := list(section(figures)):
            parts += [f"## {title}", *blocks]
    return "\n\n".join(parts) + "\n"


def _goals(figures: Figures) -> Iterator[str]:
    rows = [
        [goal.text, f"{'≤' if goal.at_most else '≥'} {goal.wanted:.3g}", _shown(goal.reached, ".3g"), goal.state]
        for goal in figures.goals()
    ]
    yield markdown(["", "goal", "found", ""], rows)


def _check(figures: Figures) -> Iterator[str]:
    def case(row: CheckRow) -> tuple[str, int, int]:
        return row.dtype, row.num_landmarks, row.head_dim

    def largest(rows: Iterable[CheckRow], name: str) -> str:
        having = [row for row in rows if name in row.ours]
        if not having:
            return "-"
        return f"{worst(row.ours[name] for row in having):.1e} ({worst(row.ratios[name] for row in having):.2f})"

    lines = []
    for key, group in groupby(sorted(figures.rows(CheckRow), key=case), key=case):
        same = list(group)
        names = ("out", "q", "k", "v", "filter")
        lines.append([*map(str, key), str(len(same)), *(largest(same, name) for name in names)])
    if lines:
        yield (
            "‖out − reference‖ / ‖reference‖ against tensor operations in float64, largest over the cases; in brackets "
            f"over the error of tensor operations in the same precision. Seeds from {figures.settings.seed} on."
        )
        header = ["dtype", "landmarks", "head dim", "cases", "out", "d_q", "d_k", "d_v", "d_filter"]
        yield markdown(header, lines)


def _ceilings(figures: Figures) -> Iterator[str]:
    if rows := figures.rows(CeilingRow):
        yield markdown(["", "median", "ms (quartiles)"], [[row.name, _ceiling(row), _shown(row.time)] for row in rows])


def _kernels(figures: Figures) -> Iterator[str]:
    rows = figures.rows(KernelRow)
    if rows:
        yield (
            "Each within a forward and backward, by events around its launch; bytes are those of all tensors that it "
            "is given, each once. What the whole takes beyond them are sums of parts and the gaps that events make."
        )
    for length, group in groupby(rows, key=lambda row: row.length):
        same, lines = list(group), []
        for row in same:
            moved = ["-", "-", "-"]
            if row.nbytes is not None:
                rate = row.nbytes / (row.time.median / 1e3)
                moved = [f"{row.nbytes / 1e6:.1f}", f"{rate / 1e9:,.0f}", _percent(figures.of_copy(rate))]
            lines.append([_bare(row.kernel), _shown(row.time), *moved])
        yield f"{same[0].rows} x {length} tokens:"
        yield markdown(["kernel", "ms (quartiles)", "MB", "GB/s", "of copy"], lines)
    if profiled := figures.rows(ProfileRow):
        yield f"Everything that is launched, by PyTorch's profiler, {profiled[0].length} tokens:"
        yield markdown(["", "calls", "ms"], [[row.name, str(row.calls), f"{row.milliseconds:.4f}"] for row in profiled])


def _attention(figures: Figures) -> Iterator[str]:
    rows = sorted(figures.rows(AttentionRow), key=lambda row: (row.length, row.rows, METHODS.index(row.method)))
    if not rows:
        return
    sizes = figures.settings.sizes
    yield (
        f"{sizes.num_heads} heads of {sizes.head_dim}, {sizes.num_landmarks} landmarks, convolution "
        f"{sizes.conv_kernel_size}, {sizes.dtype}, parameters in float32 under autocast; all methods of a batch in "
        "turn, on inputs that are not in the cache. Ratios are the method's over ours; shares of the copy's bandwidth "
        "count the N·D numbers that are named. Memory is the peak beyond the inputs."
    )
    for name, part in PARTS.items():
        counts = [count for count, (counted, _) in UNITS.items() if counted == name]
        lines = []
        for row in rows:
            rates = [figures.rate(row, count) for count in counts]
            ratios = [
                _shown(figures.over_ours(each, row.length, row.method, row.rows), ".2f")
                for each in (name, f"{name}_memory")
            ]
            times = [str(row.length), str(row.rows), row.method, _shown(getattr(row, name)), ratios[0]]
            moved = [*(f"{rate / 1e9:,.0f}" for rate in rates), *(_percent(figures.of_copy(rate)) for rate in rates)]
            lines.append([*times, *moved, f"{figure(row, f'{name}_memory'):,.1f}", ratios[1]])
        counted = [count.rpartition(", ")[2] for count in counts]
        header = ["tokens", "rows", "method", "ms (quartiles)", "/ ours", *(f"GB/s, {each}" for each in counted)]
        header += [*(f"of copy, {each}" for each in counted), "MiB", "/ ours"]
        yield f"### {part[0].upper()}{part[1:]}"
        yield markdown(header, lines)


def _launches(figures: Figures) -> Iterator[str]:
    if rows := figures.rows(LaunchRow):
        yield (
            "A forward of one row: the device's work alone, and as the host sees it, launch by launch and as one CUDA "
            "graph. What the host sees has its inputs in the cache."
        )
        lines = [
            [str(row.length), row.method, *(_shown(time) for time in (row.device, row.called, row.replayed))]
            for row in rows
        ]
        yield markdown(["tokens", "method", "device, ms", "called, ms", "replayed, ms"], lines)


def _training(figures: Figures) -> Iterator[str]:
    rows = figures.rows(TrainingRow)
    if not rows:
        return
    yield (
        "BERT-base as the shipped configs have it, without recomputation in the backward; masked tokens alone, made "
        "up; forward, backward, clipping and fused AdamW under autocast; softmax by flash attention. MFU: 3 x the "
        "forward's matrix products, 2 operations a multiplication, over the time and the measured matrix product's "
        "rate. Hours: for the tokens of 0.5 M steps of 256 x 512."
    )
    lines = []
    for row in sorted(rows, key=lambda row: (row.length, row.compiled)):
        faster = figures.training_faster(row.length, row.compiled) if row.attention == NYSTROM else None
        way = "compiled" if row.compiled else "eager"
        lines.append(
            [
                *(f"{row.rows} x {row.length}", row.attention, way, f"{row.parameters / 1e6:.1f}", _shown(row.time)),
                *(f"{row.tokens_per_second:,.0f}", _shown(faster, ".2f"), f"{row.flops / 1e12:.2f}"),
                *(_percent(figures.use_of_device(row)), f"{row.memory:,.0f}", f"{row.hours_of_the_paper:,.1f}"),
            ]
        )
    header = ["batch", "attention", "layers", "M parameters", "ms (quartiles)", "tokens/s", "/ softmax", "TFLOP", "MFU"]
    yield markdown([*header, "MiB", "hours"], lines)


def _listed(lines: Iterable[str]) -> Iterator[str]:
    if text := "\n".join(f"- {line}" for line in lines):
        yield text


def draw(figures: Figures, folder: Path, header: str) -> None:
    """`gpu-time.png`, and `gpu-bandwidth.png` where a copy was measured: time and bandwidth over the length."""
    if not figures.lengths():
        return
    panels = {"forward": "forward, ms", "both": "forward and backward, ms", "both_memory": "peak memory of both, MiB"}
    picture, axes = _panels(len(panels), header)
    for axis, (name, title) in zip(axes, panels.items(), strict=True):
        for method in METHODS:
            _line(axis, figures, method, lambda row, name=name: figure(row, name), method)
        axis.set_yscale("log", base=10)
        _finish(axis, figures, title)
    axes[0].legend(fontsize=8, frameon=False)
    write_figure(folder / "gpu-time.png", picture, dpi=110)
    copy = figures.ceiling(COPY)
    if copy is None:
        return
    picture, axes = _panels(len(PARTS), header)
    for axis, (name, part) in zip(axes, PARTS.items(), strict=True):
        for count, (counted, _) in UNITS.items():
            if counted == name:
                _line(axis, figures, OURS, lambda row, count=count: 100 * figures.rate(row, count) / copy, count)
        for wanted in (0.35, 0.45) if name == "forward" else (0.3,):
            axis.axhline(100 * wanted, color="gray", linewidth=0.8, linestyle=":")
        axis.set_ylim(0, 100)
        axis.legend(fontsize=8, frameon=False)
        _finish(axis, figures, f"{part}, % of the copy's bandwidth")
    write_figure(folder / "gpu-bandwidth.png", picture, dpi=110)


def _panels(count: int, header: str) -> tuple[Any, list[Any]]:
    picture = new_figure(5 * count, 4.6)
    picture.suptitle(header, fontsize=7)
    return picture, list(picture.subplots(1, count))


def _line(axis: Any, figures: Figures, method: str, value: Callable[..., float], label: str) -> None:
    rows = [row for length in figures.lengths() if (row := figures.attention(length, method)) is not None]
    if rows:
        style = {"linewidth": 2.2} if method == OURS else {"linewidth": 1, "alpha": 0.8}
        axis.plot([row.length for row in rows], list(map(value, rows)), "o-", markersize=3, label=label, **style)


def _finish(axis: Any, figures: Figures, title: str) -> None:
    lengths = figures.lengths()
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths])
    axis.set(xlabel="tokens", title=title)
    axis.grid(alpha=0.25)


def _ceiling(row: CeilingRow) -> str:
    """Bytes or operations a second."""
    if row.name == COPY:
        return f"{row.figure / 1e9:,.0f} GB/s, read and written"
    return f"{row.figure / 1e12:,.1f} TFLOP/s"


def _bare(kernel: str) -> str:
    """A kernel's name without what all of them end in."""
    return kernel.removesuffix("_kernel")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _shown(value: Timing | float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
