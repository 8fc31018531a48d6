"""Gathers what run.py has reached into this folder: table3.md, its figures and pictures, and the validation accuracy
over the steps, curves.png.

`python results/lra/collect.py [--runs runs/lra] [--span DIR ...]`: what is not finished is named and left out. Each
DIR is what `run_benchmark.py span` has written of some of these runs.
"""

import argparse
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.files import write_figure, write_json, write_text
from nystromformer.report.finetuning import attention_text
from nystromformer.report.lra import write_lra
from nystromformer.side_by_side import ROOT
from nystromformer.tasks.finetuning.results import RESULT_FILE, RunResult, read_result

HERE = Path(__file__).resolve().parent
TABLE = HERE / "table3.md"
FOLDERS = ("listops", "listops-short", "text", "retrieval", "image", "pathfinder", "pathfinder-6")
DRAWN = ("listops", "listops-short")
"""Of whose runs on the track `paper` the accuracy is drawn over the steps; of several seeds the first one's."""

_LISTED = 8
"""Runs whose settings a legend within a panel has room for."""


def finished(folder: Path) -> list[RunResult]:
    """Of classes: what self-pretraining began with has no accuracy."""
    found = [read_result(path.parent) for path in sorted(folder.glob(f"model/lra/*/*/{RESULT_FILE}"))]
    return [result for result in found if result is not None and "accuracy" in result.best.metrics]


def draw(runs: Path) -> None:
    """A panel for each folder; a line for each run, dashed with the convolution. Of many runs the attentions' names
    stand beside the panel, once each."""
    drawn = {
        name: [result for result in finished(runs / name) if result.task == "lra/listops" and not result.run.seed]
        for name in DRAWN
    }
    names = [name for name in DRAWN if drawn[name]]
    figure = Figure(figsize=(6.6 * len(names), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        results = drawn[name]
        best_first = sorted(results, key=lambda result: -result.best.metrics["accuracy"])
        kinds = list(dict.fromkeys(result.attention[0]["name"] for result in best_first))
        lengths = {len(result.epochs) for result in results}
        for result in best_first:
            every = result.run.every or 1
            steps = [(epoch.epoch + 1) * every for epoch in result.epochs]
            accuracy = [100 * epoch.metrics["accuracy"] for epoch in result.epochs]
            own = result.attention[0]
            style = "--" if own.get("conv_kernel_size") else "-"
            colour = f"C{kinds.index(own['name']) % 10}"
            marker = "" if kinds.index(own["name"]) < 10 else "."
            label = attention_text(result.attention)
            label += f", {steps[-1]:,} steps" if len(lengths) > 1 else ""
            if len(results) > _LISTED:
                label = own["name"] if style == "-" else "_unnamed"
            axes.plot(
                steps,
                accuracy,
                style,
                color=colour,
                marker=marker,
                linewidth=1.2,
                label=label,
            )
        axes.set(title=name, xlabel="step", ylabel="validation accuracy, %")
        axes.grid(alpha=0.25)
        if len(results) > _LISTED:
            beside = {"title": "dashed: with the convolution", "loc": "center left", "bbox_to_anchor": (1, 0.5)}
            axes.legend(fontsize=8, title_fontsize=8, frameon=False, **beside)
        else:
            axes.legend(fontsize=7, frameon=False)
    write_figure(HERE / "curves.png", figure, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/lra"))
    parser.add_argument("--span", type=Path, action="append", default=[])
    flags = parser.parse_args()
    runs = flags.runs.resolve()
    write_lra([runs / name for name in FOLDERS if finished(runs / name)], TABLE, flags.span)
    # Results tell nothing of the machine's folders.
    for path in (TABLE, TABLE.with_suffix(".json")):
        write_text(path, path.read_text().replace(f"{ROOT}/", ""))
    began = [json.loads(line) for line in (runs / "stages.jsonl").read_text().splitlines()]
    figures = json.loads(TABLE.with_suffix(".json").read_text())
    write_json(TABLE.with_suffix(".json"), {"began": began, **figures})
    draw(runs)


if __name__ == "__main__":
    main()
