"""Curves: what is drawn, and what the legend says of it."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from small import write_experiment

from nystromformer.errors import UserError
from nystromformer.report.curves import Curve, draw_curves, read_curve

NAMES = ["nystrom-small", "softmax-small", "fewer-landmarks", "mean-pooling"]


def made(name: str, orders: bool, reports: int = 30) -> Curve:
    """A run with made-up figures: a loss that falls by 0.1 a report, and a validation every tenth."""
    metrics = ["loss", "mlm_accuracy", *(["sop_accuracy"] if orders else [])]
    records: list[dict[str, Any]] = []
    for step in range(1, reports + 1):
        values = {metric: 9 - 0.1 * step if metric == "loss" else 0.01 * step for metric in metrics}
        records.append({"type": "train", "step": step, **values})
        if step % 10 == 0:
            records.append({"type": "validation", "step": step, **values})
    return Curve(name, records)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are written."""
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, *args, **options: drawn.append(figure) or save(figure, *args, **options)
    )
    return drawn


def test_one_legend_names_each_run_and_baseline_once(figures: list[Figure], tmp_path: Path) -> None:
    baselines = {"most_frequent_token": 0.05, "bigram_table": 0.13}
    draw_curves([made(name, orders=True) for name in NAMES], tmp_path / "x.png", baselines)
    (figure,) = figures
    assert len(figure.axes) == 3
    (legend,) = figure.legends
    entries = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    assert list(entries) == [*NAMES, *(name.replace("_", " ") for name in baselines)]
    for axis in figure.axes:
        for number, name in enumerate(NAMES):
            lines = axis.lines[3 * number : 3 * number + 3]
            assert {to_hex(line.get_color()) for line in lines} == {to_hex(entries[name].get_color())}
            # What falls evenly is its own running mean, which lags nowhere.
            raw, mean, _ = (line.get_ydata() for line in lines)
            assert mean[2:-2] == pytest.approx(raw[2:-2])
    assert len(figure.axes[1].lines) == 3 * len(NAMES) + len(baselines)
    box = legend.get_window_extent()
    assert all(box.y1 <= axis.get_tightbbox().y0 for axis in figure.axes), "it covers nothing"
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_lacks_a_metric_is_drawn_without(figures: list[Figure], tmp_path: Path) -> None:
    draw_curves([made("with", True), made("without", False)], tmp_path / "x.png")
    assert [len(line.get_xdata()) for line in figures[0].axes[2].lines] == [30, 30, 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("{}", ", line 1: expected a record of a run"),
        ('{"type": "start", "step": 0}', ": the run has reported no step"),
    ],
)
def test_a_damaged_log_and_one_without_a_report_are_named(log: str, said: str, tmp_path: Path) -> None:
    write_experiment(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "log.jsonl").write_text(f"{log}\n")
    with pytest.raises(UserError, match=rf"log\.jsonl{said}"):
        read_curve(tmp_path)
