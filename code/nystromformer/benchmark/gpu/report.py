"""The tables of a run, in Markdown, and its summary for a screen."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from nystromformer.benchmark.gpu.attention import AttentionRow, LaunchRow
from nystromformer.benchmark.gpu.ceilings import COPY, CeilingRow
from nystromformer.benchmark.gpu.check import CheckRow
from nystromformer.benchmark.gpu.figures import BOTH, FORWARD, MET, MISSED, UNITS, Figures, hours_of_the_paper, worst
from nystromformer.benchmark.gpu.items import FAILED, LEFT_OUT
from nystromformer.benchmark.gpu.kernels import WHOLE, KernelRow, ProfileRow
from nystromformer.benchmark.gpu.methods import METHODS, OURS
from nystromformer.benchmark.gpu.traffic import BACKWARD
from nystromformer.benchmark.gpu.traffic import FORWARD as FORWARD_UNITS
from nystromformer.benchmark.gpu.training import TrainingRow
from nystromformer.benchmark.timing import Timing

DRY_RUN = "dry run: figures mean nothing"


def failures(figures: Figures) -> list[str]:
    """What the command fails for, a line each."""
    found = [f"{o.section}, {o.title}: {o.reason}" for o in figures.outcomes if o.status == FAILED]
    for outcome in figures.outcomes:
        for row in outcome.rows:
            if isinstance(row, CheckRow):
                found += [f"check, {outcome.title}: {wrong}" for wrong in row.wrong]
            elif isinstance(row, (AttentionRow, TrainingRow)) and row.failed:
                method = row.method if isinstance(row, AttentionRow) else row.attention
                found.append(f"{outcome.section}, {outcome.title}, {method}: {row.reason}")
    return found


def omissions(figures: Figures) -> list[str]:
    """What was left out, and why."""
    found = [f"{o.section}, {o.title}: {o.reason}" for o in figures.outcomes if o.status == LEFT_OUT]
    for outcome in figures.outcomes:
        for row in outcome.rows:
            if isinstance(row, (AttentionRow, TrainingRow)) and row.reason and not row.failed:
                method = row.method if isinstance(row, AttentionRow) else row.attention
                found.append(f"{outcome.section}, {outcome.title}, {method}: {row.reason}")
            elif isinstance(row, LaunchRow) and row.reason:
                found.append(f"{outcome.section}, {outcome.title}, CUDA graph of {row.method}: {row.reason}")
    return found


def markdown(figures: Figures, facts: Mapping[str, Any]) -> str:
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


def summary(figures: Figures) -> str:
    """The main figures on one screen."""
    lines = [DRY_RUN] if figures.settings.dry_run else []
    for ceiling in figures.rows(CeilingRow):
        lines.append(f"{ceiling.name}: {_ceiling(ceiling)}")
    checks = figures.rows(CheckRow)
    if checks:
        wrong = sum(bool(row.wrong) for row in checks)
        most = worst(ratio for row in checks for ratio in row.ratios.values())
        lines.append(f"check: {len(checks)} comparisons, {wrong} wrong; errors up to {most:.2f} x tensor operations'")
    lines += _attention_summary(figures)
    for row in figures.rows(LaunchRow):
        replayed = "-" if row.replayed is None else f"{row.replayed.median:.3f}"
        lines.append(f"one row of {row.length}, {row.method}: {row.called.median:.3f} ms called, {replayed} as a graph")
    for step in figures.rows(TrainingRow):
        if step.tokens_per_second is not None:
            way = f"{step.attention}{', compiled' if step.compiled else ''}"
            used = _percent(figures.use_of_device(step))
            lines.append(
                f"training, {step.rows} x {step.length}, {way}: {step.tokens_per_second:,.0f} tokens/s, MFU {used}, "
                f"{_number(step.memory, ',.0f')} MiB"
            )
    states = [goal.state for goal in figures.goals()]
    lines.append(f"goals: {states.count(MET)} met, {states.count(MISSED)} missed, of {len(states)}")
    lines += [f"  missed: {g.text}: {g.found:.2f} for {g.wanted:.2f}" for g in figures.goals() if g.state == MISSED]
    lines.append(f"left out: {len(omissions(figures))}, each with its reason in gpu.md")
    return "\n".join([*lines, *(f"FAILED: {line}" for line in failures(figures))])


def _attention_summary(figures: Figures) -> Iterator[str]:
    if not figures.lengths():
        return
    others = [name for name in METHODS if name != OURS]
    yield f"{'tokens':>8} {'forward ms':>10} {'of copy':>7} {'fwd+bwd ms':>10} {'of copy':>7}  fwd+bwd faster than " + (
        " | ".join(others)
    )
    forward, _, both = UNITS
    for length in [*figures.lengths(), figures.settings.sizes.longest]:
        row = figures.attention(length)
        if row is None or row.forward is None or row.both is None:
            continue
        shares = [_percent(_of_copy(figures, row, count)) for count in (forward, both)]
        ratios = " | ".join(_number(figures.faster(length, name, BOTH), ".1f") for name in others)
        times = [f"{timing.median:>10.3f}" for timing in (row.forward, row.both)]
        yield f"{length:>8} {times[0]} {shares[0]:>7} {times[1]} {shares[1]:>7}  {ratios}"


def _goals(figures: Figures) -> Iterator[str]:
    yield "## Goals"
    rows = [[goal.text, ("≤ " if goal.at_most else "≥ ") + f"{goal.wanted:.3g}"] for goal in figures.goals()]
    found = [[_number(goal.found, ".3g"), goal.state] for goal in figures.goals()]
    yield _table(["", "goal", "found", ""], [a + b for a, b in zip(rows, found, strict=True)])


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
    yield _table(header, cells)


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
        yield _table(["", "median", "ms (quartiles)"], [[row.name, _ceiling(row), _shown(row.time)] for row in rows])


def _ceiling(row: CeilingRow) -> str:
    if row.name == COPY:
        return f"{row.figure / 1e9:,.0f} GB/s, read and written"
    return f"{row.figure / 1e12:,.1f} TFLOP/s"


def _kernels(figures: Figures) -> Iterator[str]:
    rows = figures.rows(KernelRow)
    if rows:
        yield "## Kernels"
        yield (
            "Each within a forward and backward, by events around its launch; bytes are each input once and each "
            "output once. What the whole takes beyond its kernels are sums of parts and the gaps that events make."
        )
    for length, group in groupby(rows, key=lambda row: row.length):
        same = list(group)
        order = {name: place for place, name in enumerate([*FORWARD_UNITS, *BACKWARD, WHOLE])}
        cells = []
        for row in sorted(same, key=lambda row: order.get(row.kernel, len(order) - 1)):
            rate = None if row.nbytes is None else row.nbytes / (row.time.median / 1e3)
            of_copy = None if rate is None or figures.bandwidth is None else rate / figures.bandwidth
            moved = [_number(row.nbytes and row.nbytes / 1e6, ".1f"), _number(rate and rate / 1e9, ",.0f")]
            cells.append([row.kernel.removesuffix("_kernel"), _shown(row.time), *moved, _percent(of_copy)])
        yield f"{same[0].rows} rows of {length} tokens:"
        yield _table(["kernel", "ms (quartiles)", "MB", "GB/s", "of copy"], cells)
    profiled = figures.rows(ProfileRow)
    if profiled:
        yield f"Everything that is launched, by PyTorch's profiler, {profiled[0].length} tokens:"
        yield _table(["", "calls", "ms"], [[row.name, str(row.calls), f"{row.milliseconds:.4f}"] for row in profiled])


def _attention(figures: Figures) -> Iterator[str]:
    rows = sorted(figures.rows(AttentionRow), key=lambda row: (row.length, METHODS.index(row.method)))
    if not rows:
        return
    sizes = figures.settings.sizes
    yield "## Attention"
    yield (
        f"{sizes.num_heads} heads of {sizes.head_dim}, {sizes.num_landmarks} landmarks, convolution "
        f"{sizes.conv_kernel_size}, {sizes.dtype}, parameters in float32 under autocast, as many rows as make "
        f"{max(sizes.tokens, 1)} tokens (one of the longest). Ratios are the method's over ours; shares of the copy's "
        "bandwidth count the N·D numbers that are named."
    )
    for part, counts in ((FORWARD, list(UNITS)[:2]), (BOTH, list(UNITS)[2:])):
        cells = []
        for row in rows:
            time, memory = (row.forward, row.forward_memory) if part == FORWARD else (row.both, row.both_memory)
            if time is None:
                continue
            shares = [figures.share(row, count) for count in counts]
            cells.append(
                [
                    *(str(row.length), str(row.rows), row.method, _shown(time)),
                    _number(figures.faster(row.length, row.method, part), ".2f"),
                    *("-" if share is None else f"{share.rate / 1e9:,.0f}" for share in shares),
                    *(_percent(None if share is None else share.of_copy) for share in shares),
                    *(_number(memory, ",.1f"), _number(figures.leaner(row.length, row.method, part), ".2f")),
                ]
            )
        counted = [count.rpartition(", ")[2] for count in counts]
        header = ["tokens", "rows", "method", "ms (quartiles)", "/ ours", *(f"GB/s, {each}" for each in counted)]
        header += [*(f"of copy, {each}" for each in counted), "MiB", "/ ours"]
        yield f"### {part[0].upper()}{part[1:]}"
        yield _table(header, cells)


def _launches(figures: Figures) -> Iterator[str]:
    rows = figures.rows(LaunchRow)
    if rows:
        yield "## Launches"
        yield (
            "A forward of one row: the device's work alone, and as the host sees it, launch by launch and as one CUDA "
            "graph. The inputs stay in the cache."
        )
        cells = [
            [str(row.length), row.method, *(_shown(time) for time in (row.device, row.called, row.replayed))]
            for row in rows
        ]
        yield _table(["tokens", "method", "device, ms", "called, ms", "replayed, ms"], cells)


def _training(figures: Figures) -> Iterator[str]:
    rows = [row for row in figures.rows(TrainingRow) if row.time is not None]
    if not rows:
        return
    yield "## Pretraining steps"
    yield (
        "BERT-base as the shipped configs have it (recomputation included), made-up tokens, forward, backward, "
        "clipping and fused AdamW under autocast; softmax by flash attention. MFU: 3 x the forward's matrix products, "
        "2 operations a multiplication, over the time and the measured matrix product's rate; what is computed again "
        "does not count. Hours: for the tokens of 0.5 M steps of 256 x 512."
    )
    cells = []
    for row in sorted(rows, key=lambda row: (row.length, row.compiled)):
        way = "compiled" if row.compiled else "eager"
        cells.append(
            [
                *(f"{row.rows} x {row.length}", row.attention, way, f"{row.parameters / 1e6:.1f}", _shown(row.time)),
                *(_number(row.tokens_per_second, ",.0f"), f"{row.flops / 1e12:.2f}"),
                *(_percent(figures.use_of_device(row)), _number(row.memory, ",.0f")),
                _number(hours_of_the_paper(row), ",.1f"),
            ]
        )
    header = [
        "batch",
        "attention",
        "layers",
        "M parameters",
        "ms (quartiles)",
        "tokens/s",
        "TFLOP",
        "MFU",
        "MiB",
        "hours",
    ]
    yield _table(header, cells)


def _listed(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"## {title}"
        yield "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shown(timing: Timing | None) -> str:
    return "-" if timing is None else f"{timing.median:.3f} ({timing.low:.3f}-{timing.high:.3f})"


def _of_copy(figures: Figures, row: AttentionRow, count: str) -> float | None:
    share = figures.share(row, count)
    return None if share is None else share.of_copy


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
