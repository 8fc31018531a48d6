"""Training and validation curves of any set of runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.errors import UserError
from nystromformer.tasks.experiment import open_experiment
from nystromformer.training.log import read_log

_PICTURES = (".png", ".svg", ".pdf")
_PANELS = {"loss": "loss", "mlm_accuracy": "masked tokens right, %", "sop_accuracy": "sentence orders right, %"}


@dataclass(frozen=True)
class Run:
    """A run's name and the lines of its log."""

    name: str
    records: list[dict[str, Any]]

    def series(self, kind: str, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric; accuracies in percent."""
        factor = 100.0 if metric.endswith("accuracy") else 1.0
        points = [(r["step"], factor * r[metric]) for r in self.records if r["type"] == kind and metric in r]
        return [step for step, _ in points], [value for _, value in points]


def read_run(folder: Path) -> Run:
    """The run of an experiment folder.

    Raises:
        UserError: no experiment or no log there, or one without a report.
    """
    path = open_experiment(folder).checkpoints / "log.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: no such file; the folder has no pretraining run yet")
    run = Run(folder.resolve().name, read_log(path))
    if not any(record["type"] == "train" for record in run.records):
        raise UserError(f"{path}: the run has reported no step yet")
    return run


def draw_curves(runs: Sequence[Run], path: Path, baselines: dict[str, float] | None = None) -> None:
    """Draw one panel per metric over the steps, training thin and validation marked; writes a PNG.

    Args:
        baselines: names and accuracies drawn as horizontal lines in the masked-token panel.
    """
    if path.suffix not in _PICTURES:
        raise UserError(f"{path}: expected a picture's name that ends in one of {', '.join(_PICTURES)}")
    # Without a window system; imported here, because it takes a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = [metric for metric in _PANELS if any(run.series("train", metric)[0] for run in runs)]
    figure = Figure(figsize=(5.6 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(1, len(panels)))
    for axis, metric in zip(axes, panels, strict=True):
        for number, run in enumerate(runs):
            color = f"C{number}"
            steps, values = run.series("train", metric)
            axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
            axis.plot(steps, _smooth(values), color=color, linewidth=1.4, label=f"{run.name}, training")
            axis.plot(
                *run.series("validation", metric), "o--", color=color, markersize=4, label=f"{run.name}, validation"
            )
        if metric == "mlm_accuracy":
            for style, (name, accuracy) in zip((":", "-."), (baselines or {}).items(), strict=False):
                axis.axhline(100 * accuracy, color="grey", linestyle=style, label=name.replace("_", " "))
        axis.set(xlabel="step", title=_PANELS[metric])
        axis.grid(alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """A running mean over the last few reports."""
    return [float(np.mean(values[max(0, i + 1 - width) : i + 1])) for i in range(len(values))]
