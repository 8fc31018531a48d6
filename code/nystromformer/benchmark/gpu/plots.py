"""Pictures of a run: time, and share of the copy's bandwidth, over the length."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib  # noqa: F401  # before the minutes of measuring: it may be missing

from nystromformer.benchmark.gpu.attention import GpuAttentionRow
from nystromformer.benchmark.gpu.figures import BOTH, FORWARD, UNITS, Figures
from nystromformer.benchmark.gpu.methods import METHODS, OURS
from nystromformer.benchmark.results import new_figure
from nystromformer.benchmark.timing import Timing
from nystromformer.files import write_figure


def draw(figures: Figures, folder: Path, header: str) -> None:
    """`gpu-time.png`, and `gpu-bandwidth.png` where a copy was measured."""
    if not any(row.forward is not None for row in figures.rows(GpuAttentionRow)):
        return
    panels: dict[str, Callable[[GpuAttentionRow], float | None]] = {
        "forward, ms": lambda row: _median(row.forward),
        "forward and backward, ms": lambda row: _median(row.both),
        "peak memory of both, MiB": lambda row: row.both_memory,
    }
    figure, axes = _figure(len(panels), header)
    for axis, (title, value) in zip(axes, panels.items(), strict=True):
        for method in METHODS:
            _line(axis, figures, method, value, method)
        axis.set_yscale("log", base=10)
        _finish(axis, figures, title)
    axes[0].legend(fontsize=8, frameon=False)
    write_figure(folder / "gpu-time.png", figure, dpi=110)
    if figures.bandwidth is not None:
        _draw_bandwidth(figures, folder / "gpu-bandwidth.png", header)


def _draw_bandwidth(figures: Figures, path: Path, header: str) -> None:
    figure, axes = _figure(2, header)
    for axis, part in zip(axes, (FORWARD, BOTH), strict=True):
        for count, (counted, _) in UNITS.items():
            if counted == part:
                _line(axis, figures, OURS, lambda row, count=count: _percent(figures, row, count), count)
        for wanted in (0.35, 0.45) if part == FORWARD else (0.3,):
            axis.axhline(100 * wanted, color="gray", linewidth=0.8, linestyle=":")
        axis.set_ylim(0, 100)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8, frameon=False)
        _finish(axis, figures, f"{part}, % of the copy's bandwidth")
    write_figure(path, figure, dpi=110)


def _figure(panels: int, header: str) -> tuple[Any, list[Any]]:
    figure = new_figure(5 * panels, 4.6)
    figure.suptitle(header, fontsize=7)
    return figure, list(figure.subplots(1, panels))


def _line(axis: Any, figures: Figures, method: str, value: Callable[..., float | None], label: str) -> None:
    rows = [figures.attention(length, method) for length in figures.lengths()]
    points = [(row.length, value(row)) for row in rows if row is not None and value(row) is not None]
    if points:
        style = {"linewidth": 2.2} if method == OURS else {"linewidth": 1, "alpha": 0.8}
        axis.plot(*zip(*points, strict=True), "o-", markersize=3, label=label, **style)


def _finish(axis: Any, figures: Figures, title: str) -> None:
    lengths = figures.lengths()
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [_short(length) for length in lengths])
    axis.set(xlabel="tokens", title=title)
    axis.grid(alpha=0.25)


def _median(timing: Timing | None) -> float | None:
    return None if timing is None else timing.median


def _percent(figures: Figures, row: GpuAttentionRow, count: str) -> float | None:
    moved = figures.throughput(row, count)
    return None if moved is None or moved.of_copy is None else 100 * moved.of_copy


def _short(length: int) -> str:
    return f"{length // 1024}k" if length >= 1024 and length % 1024 == 0 else str(length)
