"""Training and validation curves of any set of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nystromformer.benchmark.findings import new_figure
from nystromformer.errors import UserError
from nystromformer.files.writing import write_figure
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.training.log import figure, read_log

_PICTURES = (".png", ".svg", ".pdf")
_WINDOW = 0.02
"""The part of a run's reports that its running mean is taken over; five of them where that is more."""
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
        return ["loss", *(metric for metric in metrics if metric.endswith("_accuracy"))]

    def series(self, kind: str, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; accuracies in percent."""
        factor = 100.0 if metric.endswith("accuracy") else 1.0
        points = [(r["step"], figure(r, metric)) for r in self.records if r["type"] == kind]
        there = [(step, factor * value) for step, value in points if value is not None]
        return [step for step, _ in there], [value for _, value in there]


def read_curve(folder: Path) -> Curve:
    """The run of an experiment folder."""
    path = open_experiment(folder).checkpoints / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: no such file; the folder has no pretraining run yet")
    run = Curve(folder.resolve().name, read_log(path))
    if not run.series("train", "loss")[0]:
        raise UserError(f"{path}: the run has reported no step yet")
    return run


def draw_curves(runs: Sequence[Curve], path: Path, baselines: Mapping[str, float] | None = None) -> None:
    """Draw one panel per metric over the steps: a color for each run, its reports thin, their running mean bold, its
    validations marked, and one legend for all of it.

    Args:
        path: of the picture, PNG, SVG or PDF by its ending.
        baselines: names and accuracies drawn as horizontal lines in the masked-token panel.
    """
    if path.suffix not in _PICTURES:
        raise UserError(f"{path}: expected a picture's name that ends in one of {', '.join(_PICTURES)}")
    panels = list(dict.fromkeys(metric for run in runs for metric in run.panels))
    figure = new_figure(5.6 * len(panels), 4.2)
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, metric in zip(axes, panels, strict=True):
        for number, run in enumerate(runs):
            steps, values = run.series("train", metric)
            axis.plot(steps, values, color=f"C{number}", **_RAW)
            # Centred, so that it lags nowhere.
            mean = pd.Series(values, dtype=float).rolling(max(5, round(_WINDOW * len(values))) | 1, center=True).mean()
            axis.plot(steps, mean, color=f"C{number}", label=run.name, **_MEAN)
            axis.plot(*run.series("validation", metric), color=f"C{number}", **_VALIDATION)
        if metric == "mlm_accuracy":
            for style, (name, accuracy) in zip((":", "-."), (baselines or {}).items(), strict=False):
                axis.axhline(100 * accuracy, color="grey", linestyle=style, label=name.replace("_", " "))
        axis.set(xlabel="step", title=_TITLES.get(metric, f"{metric.removesuffix('_accuracy')} right, %"))
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    labelled = [zip(*axis.get_legend_handles_labels(), strict=True) for axis in axes]
    handles = {label: handle for pairs in labelled for handle, label in pairs}
    title = "thin: each report of the training; bold: their running mean; points: validation"
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(5, len(handles)), "frameon": False}
    figure.legend(handles.values(), handles.keys(), title=title, title_fontsize=8, fontsize=8, **place)
    write_figure(path, figure, dpi=120)
