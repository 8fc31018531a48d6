"""Gathers what run.py has reached into this folder: table3.md, its figures and pictures, and the validation accuracy
over the steps, curves*.png. What table3.json has of runs that are not there any more stays.

`python results/lra/collect.py [--runs runs/lra] [--span DIR ...]`: what is not finished is named and left out. Each
DIR is what `run_benchmark.py span` has written of some of these runs; by default this folder, whose span.json has the
spans of earlier runs.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from nystromformer.files import write_figure, write_json, write_text
from nystromformer.report.finetuning import attention_text
from nystromformer.report.lra import Arena, Cell, collect, name_columns, write_arena
from nystromformer.report.paper import LRA_TASKS
from nystromformer.runs.figures import Spread
from nystromformer.runs.record import Run, find_runs
from nystromformer.side_by_side import ROOT, read_stages

HERE = Path(__file__).resolve().parent
TABLE = HERE / "table3.md"
FOLDERS = ("listops", "listops-short", "listops-curriculum", "text", "retrieval", "image", "pathfinder", "pathfinder-6")
DRAWN = {"curves.png": ("listops", "listops-short"), "curves-curriculum.png": ("listops-curriculum",)}
"""By picture, of whose runs on the track `paper` the accuracy is drawn over the steps; of several seeds the first
one's. Where the runs of a picture are gone, it stays."""

_SPREADS = ("test", "validation", "hours")
_LISTED = 8
"""Runs whose settings a legend within a panel has room for."""


def finished(folder: Path) -> list[Run]:
    """Of classes: what self-pretraining began with has no accuracy."""
    return [run for run in find_runs(folder / "model", "lra") if "accuracy" in run.best.metrics]


def draw(runs: Path, picture: str) -> None:
    """A panel for each folder; a line for each run, dashed with the convolution. Of many runs the attentions' names
    stand beside the panel, once each."""
    drawn = {
        name: [result for result in finished(runs / name) if result.task == "lra/listops" and not result.settings.seed]
        for name in DRAWN[picture]
    }
    names = [name for name, results in drawn.items() if results]
    if not names:
        return
    figure = Figure(figsize=(6.6 * len(names), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        results = drawn[name]
        best_first = sorted(results, key=lambda result: -result.best.metrics["accuracy"])
        kinds = list(dict.fromkeys(result.attention[0]["name"] for result in best_first))
        lengths = {len(result.epochs) for result in results}
        for result in best_first:
            every = result.settings.every or 1
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
    write_figure(HERE / picture, figure, dpi=110)


def with_earlier(arena: Arena, path: Path) -> Arena:
    """Newly finished runs beside those that a file tells of, whose own folders may be gone: columns of one description
    are one, and a cell that was collected again replaces the earlier one.
    """
    kept = json.loads(path.read_text())
    earlier = [Cell(**cell | {name: Spread(**cell[name]) for name in _SPREADS}) for cell in kept["cells"]]
    texts = dict.fromkeys((*kept["columns"].values(), *arena.columns.values()))
    tasks = {text: text.partition(":")[0] for text in texts}
    order = [task.lower() for task in LRA_TASKS]
    tasks = dict(sorted(tasks.items(), key=lambda item: order.index(item[1].partition("-")[0])))
    names = name_columns(tasks)
    cells: dict[tuple[str, str], Cell] = {}
    for columns, found in ((kept["columns"], earlier), (arena.columns, arena.cells)):
        for cell in found:
            name = names[columns[cell.column]]
            cells[name, cell.attention] = replace(cell, column=name)
    ordered = sorted(cells.values(), key=lambda cell: list(names.values()).index(cell.column))
    return Arena({names[text]: text for text in tasks}, ordered, arena.unfinished)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/lra"))
    parser.add_argument("--span", type=Path, action="append")
    flags = parser.parse_args()
    runs = flags.runs.resolve()
    earlier = json.loads(TABLE.with_suffix(".json").read_text())["began"]
    arena = with_earlier(
        collect([runs / name for name in FOLDERS if finished(runs / name)]), TABLE.with_suffix(".json")
    )
    write_arena(arena, TABLE, flags.span or [HERE])
    # Results tell nothing of the machine's folders.
    for path in (TABLE, TABLE.with_suffix(".json")):
        write_text(path, path.read_text().replace(f"{ROOT}/", ""))
    began = earlier + read_stages(runs)
    figures = json.loads(TABLE.with_suffix(".json").read_text())
    write_json(TABLE.with_suffix(".json"), {"began": began, **figures})
    for picture in DRAWN:
        draw(runs, picture)


if __name__ == "__main__":
    main()
