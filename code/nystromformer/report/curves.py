"""Training and validation curves of any set of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.benchmark.findings import new_figure
from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure
from nystromformer.tasks.experiment.folder import read_experiment
from nystromformer.training.log import figure, read_log

_PICTURES = (".png", ".svg", ".pdf")
_WINDOW = 0.02
"""The part of a run's reports that its running mean is taken over; five of them where that is less."""
_ROW = 5
"""Entries that the legend has in one row."""
_RAW: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.35, "zorder": 1}
_MEAN: dict[str, Any] = {"linewidth": 1.7, "zorder": 2}
_VALIDATION: dict[str, Any] = {
    "marker": "o",
    "markersize": 4.5,
    "markeredgecolor": "white",
    "linestyle": "--",
    "linewidth": 0.9,
    "zorder": 3,
}
_BASELINES: tuple[dict[str, Any], ...] = ({"linestyle": ":"}, {"linestyle": "-."})
_TITLES = {"loss": "loss", "mlm_accuracy": "masked-token accuracy, %", "sop_accuracy": "sentence-order accuracy, %"}


@dataclass(frozen=True)
class Curve:
    """A run's name and the lines of its log."""

    name: str
    records: list[dict[str, Any]]

    @property
    def panels(self) -> list[str]:
        """What is drawn of it: the loss, and what was right of each objective."""
        metrics = dict.fromkeys(metric for record in self.records if record["type"] == "train" for metric in record)
        # A key that no objective has is damage, and no formula to print.
        return ["loss", *(metric for metric in metrics if metric.endswith("_accuracy") and metric.isidentifier())]

    def series(self, kind: str, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; accuracies in percent."""
        factor = 100.0 if metric.endswith("accuracy") else 1.0
        points = [(r["step"], figure(r, metric)) for r in self.records if r["type"] == kind]
        there = [(step, factor * value) for step, value in points if value is not None]
        return [step for step, _ in there], [value for _, value in there]


def read_curve(folder: Path) -> Curve:
    """The run of an experiment folder.

    Raises:
        UserError: no experiment or no log there, or one that cannot be read or has no report.
    """
    path = read_experiment(folder).checkpoints / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: no such file; the folder has no pretraining run yet")
    run = Curve(folder.resolve().name, read_log(path))
    if not run.series("train", "loss")[0]:
        raise UserError(f"{path}: the run has reported no step yet")
    return run


def draw_curves(runs: Sequence[Curve], path: Path, baselines: dict[str, float] | None = None) -> None:
    """Draw one panel per metric over the steps: a color for each run, its reports thin, their running mean bold, its
    validations marked, and one legend for all of it.

    Args:
        path: of the picture, PNG, SVG or PDF by its ending.
        baselines: names and accuracies drawn as horizontal lines in the masked-token panel.

    Raises:
        UserError: another ending.
    """
    if path.suffix not in _PICTURES:
        raise UserError(f"{path}: expected a picture's name that ends in one of {', '.join(_PICTURES)}")
    # Importing it takes a second.
    from matplotlib.lines import Line2D

    panels = list(dict.fromkeys(metric for run in runs for metric in run.panels))
    figure = new_figure(5.6 * len(panels), 4.2)
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, metric in zip(axes, panels, strict=True):
        for number, run in enumerate(runs):
            steps, values = run.series("train", metric)
            axis.plot(steps, values, color=f"C{number}", **_RAW)
            axis.plot(*_smooth(steps, values), color=f"C{number}", **_MEAN)
            axis.plot(*run.series("validation", metric), color=f"C{number}", **_VALIDATION)
        if metric == "mlm_accuracy":
            for style, accuracy in zip(_BASELINES, (baselines or {}).values(), strict=False):
                axis.axhline(100 * accuracy, color="grey", **style)
        axis.set(xlabel="step", title=_TITLES.get(metric, f"{metric.removesuffix('_accuracy')} right, %"))
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    runs_named = [Line2D([], [], color=f"C{number}", label=run.name, **_MEAN) for number, run in enumerate(runs)]
    styles = {"training, each report": _RAW, "training, running mean": _MEAN, "validation": _VALIDATION}
    if "mlm_accuracy" in panels:
        styles |= zip((name.replace("_", " ") for name in baselines or {}), _BASELINES, strict=False)
    styles_named = [Line2D([], [], color="0.3", label=name, **style) for name, style in styles.items()]
    rows = 1 if len(runs_named) + len(styles_named) <= _ROW else 3
    # Filled up, so that runs and styles stand in columns of their own.
    blank = Line2D([], [], alpha=0, label=" ")
    entries = [entry for part in (runs_named, styles_named) for entry in [*part, *[blank] * (-len(part) % rows)]]
    figure.legend(handles=entries, loc="outside lower center", ncols=len(entries) // rows, fontsize=8, frameon=False)
    write_figure(path, figure, dpi=120)


def _smooth(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """Steps and a running mean around each, of as many reports before it as after it, so that it lags nowhere.

    Towards both ends it is of fewer, but in a run of some length not of one or three: chance would say where it ends.
    """
    least = 2 if len(values) > 10 else 0
    widest = max(2, round(_WINDOW * len(values) / 2))
    inside = range(least, len(values) - least)
    sides = [min(widest, i, len(values) - 1 - i) for i in inside]
    means = [float(np.mean(values[i - side : i + side + 1])) for i, side in zip(inside, sides, strict=True)]
    return [steps[i] for i in inside], means
