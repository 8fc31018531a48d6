"""Curves: what is drawn, and what the legend says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from small import write_experiment

from nystromformer.errors import UserError
from nystromformer.report.curves import Curve, _smooth, draw_curves, read_curve

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


@pytest.mark.parametrize("count", [0, 1, 5, 10, 11, 300])
def test_the_running_mean_lags_nowhere(count: int) -> None:
    """What rises evenly is its own centred mean, at both ends, too."""
    steps = list(range(10, 10 * count + 1, 10))
    shown, means = _smooth(steps, [0.5 * step for step in steps])
    assert means == pytest.approx([0.5 * step for step in shown])
    assert len(shown) == (count if count <= 10 else count - 4)


@pytest.mark.parametrize("orders", [False, True], ids=["two panels", "three panels"])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("baselines", [{}, {"most_frequent_token": 0.05, "bigram_table": 0.13}], ids=["", "baselines"])
def test_one_legend_names_each_run_and_each_kind_of_line_once(
    figures: list[Figure], tmp_path: Path, orders: bool, count: int, baselines: dict[str, float]
) -> None:
    runs = [made(name, orders) for name in NAMES[:count]]
    draw_curves(runs, tmp_path / "x.png", baselines)
    (figure,) = figures
    assert len(figure.axes) == 2 + orders
    assert all(axis.get_legend() is None for axis in figure.axes)
    (legend,) = figure.legends
    entries = {text.get_text(): line for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}
    styles = ["training, each report", "training, running mean", "validation"]
    assert [name for name in entries if name.strip()] == [
        *NAMES[:count],
        *styles,
        *(name.replace("_", " ") for name in baselines),
    ]
    # The colors are those of the lines, and the styles, too.
    for axis in figure.axes:
        for number, name in enumerate(NAMES[:count]):
            raw, mean, validation = axis.lines[3 * number : 3 * number + 3]
            assert {to_hex(line.get_color()) for line in (raw, mean, validation)} == {to_hex(entries[name].get_color())}
            for line, style in zip((raw, mean, validation), styles, strict=True):
                shown = entries[style]
                assert (line.get_linewidth(), line.get_marker()) == (shown.get_linewidth(), shown.get_marker())
    assert len(figure.axes[1].lines) == 3 * count + len(baselines)


def test_a_run_that_lacks_a_metric_is_drawn_without(figures: list[Figure], tmp_path: Path) -> None:
    draw_curves([made("with", True), made("without", False)], tmp_path / "x.png")
    assert [len(line.get_xdata()) for line in figures[0].axes[2].lines] == [30, 26, 3, 0, 0, 0]


def test_the_legend_is_below_the_panels_and_covers_nothing(figures: list[Figure], tmp_path: Path) -> None:
    draw_curves([made(name, orders=False) for name in NAMES], tmp_path / "x.png", {"most_frequent_token": 0.05})
    (figure,) = figures
    box = figure.legends[0].get_window_extent()
    assert all(box.y1 <= axis.get_tightbbox().y0 for axis in figure.axes)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def log_of(folder: Path, lines: list[bytes]) -> Path:
    """An experiment whose run has this log."""
    write_experiment(folder)
    path = folder / "model" / "log.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_figures_that_are_no_numbers_are_passed_over(figures: list[Figure], tmp_path: Path) -> None:
    records = made("x", orders=False).records
    odd = [
        {"type": "train", "step": 5, "loss": None, "mlm_accuracy": "high"},
        {"type": "train", "step": 5, "loss": float("inf"), "mlm_accuracy": float("nan"), "$x_accuracy": 1.0},
    ]
    log_of(tmp_path / "run", [json.dumps(record).encode() for record in [*odd, *records]])
    run, whole = read_curve(tmp_path / "run"), Curve("run", records)
    for kind in ("train", "validation"):
        for metric in ("loss", "mlm_accuracy"):
            assert run.series(kind, metric) == whole.series(kind, metric)
    assert run.panels == whole.panels
    draw_curves([run], tmp_path / "x.png")
    assert len(figures) == 1


@pytest.mark.parametrize("line", [b"", b"\xff\x00", b'{"type": "tr', b'{"type": ["train"], "step": 5}'])
def test_a_damaged_log_and_one_without_a_report_are_named(line: bytes, tmp_path: Path) -> None:
    path = log_of(tmp_path / "run", [line, b'{"type": "start", "step": 0}'])
    with pytest.raises(UserError, match=rf"{path}, line 1: expected a record of a run"):
        read_curve(tmp_path / "run")
    path = log_of(tmp_path / "other", [b'{"type": "start", "step": 0}'])
    with pytest.raises(UserError, match=rf"{path}: the run has reported no step yet"):
        read_curve(tmp_path / "other")
