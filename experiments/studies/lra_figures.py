"""The table and the pictures of results/lra."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nystromformer import studies
from nystromformer.checked_json import checked
from nystromformer.files import write_figure, write_json
from nystromformer.report.finetuning import attention_text
from nystromformer.report.lra import Arena, Cell, name_columns, write_arena
from nystromformer.report.lra import collect as collect_runs
from nystromformer.report.paper import LRA_TASKS
from nystromformer.runs.record import Run, find_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = studies.RESULTS / "lra"
FOLDERS = ("listops", "listops-short", "listops-curriculum", "text", "retrieval", "image", "pathfinder", "pathfinder-6")
DRAWN = {"curves.png": ("listops", "listops-short"), "curves-curriculum.png": ("listops-curriculum",)}
"""By picture, of whose runs on the track `paper` the accuracy is drawn over the steps; of several seeds the first
one's. Where the runs of a picture are gone, it stays."""
LISTED = 8
"""Runs whose settings a legend within a panel has room for."""


def collect(
    runs: Path = Path("runs/lra"),
    span: Annotated[
        list[Path], typer.Option(help="What `run_benchmark.py span` has written of some of these runs.")
    ] = [RESULTS],  # noqa: B006
) -> None:
    """Write table3.md, its figures and pictures, and curves*.png. What table3.json has of runs that are not there any
    more stays.
    """
    page, data = RESULTS / "table3.md", RESULTS / "table3.json"
    earlier = studies.read_json(data)
    began = earlier.pop("began") + studies.read_stages(runs)
    folders = [runs / name for name in FOLDERS if finished(runs / name)]
    found = collect_runs(folders) if folders else Arena({}, [], [])
    write_arena(join(checked(Arena, {**earlier, "unfinished": []}), found), page, span)
    write_json(data, {"began": began, **studies.read_json(data)})
    for path in (page, data):
        studies.without_places(path, runs, "lra")
    for picture in DRAWN:
        draw(runs, picture)


def finished(folder: Path) -> list[Run]:
    """Of classes: what self-pretraining began with has no accuracy."""
    return [run for run in find_runs(folder / "model", "lra") if "accuracy" in run.best.metrics]


def join(earlier: Arena, found: Arena) -> Arena:
    """Newly finished runs beside earlier ones: columns of one description are one, and a cell that was collected again
    replaces the earlier one.
    """
    order = [task.lower() for task in LRA_TASKS]
    tasks = {text: text.partition(":")[0] for text in (*earlier.columns.values(), *found.columns.values())}
    tasks = dict(sorted(tasks.items(), key=lambda item: order.index(item[1].partition("-")[0])))
    names = name_columns(tasks)
    cells: dict[tuple[str, str], Cell] = {}
    for arena in (earlier, found):
        for cell in arena.cells:
            name = names[arena.columns[cell.column]]
            cells[name, cell.attention] = replace(cell, column=name)
    ordered = sorted(cells.values(), key=lambda cell: list(names.values()).index(cell.column))
    return Arena({names[text]: text for text in tasks}, ordered, found.unfinished)


def draw(runs: Path, picture: str) -> None:
    """A panel for each folder."""
    panels = {
        name: [run for run in finished(runs / name) if run.task == "lra/listops" and not run.settings.seed]
        for name in DRAWN[picture]
    }
    panels = {name: found for name, found in panels.items() if found}
    if panels:
        figure, axes = studies.new_figure(len(panels), 6.6 * len(panels), 5.2, grid=0.25)
        for axis, (name, found) in zip(axes, panels.items(), strict=True):
            draw_runs(axis, found)
            axis.set(title=name, xlabel="step", ylabel="validation accuracy, %")
        write_figure(RESULTS / picture, figure, dpi=110)


def draw_runs(axis: "Axes", runs: Sequence[Run]) -> None:
    """A line for each run, dashed with the convolution. Of many runs the attentions' names stand beside the panel, once
    each."""
    best_first = sorted(runs, key=lambda run: -run.best.metrics["accuracy"])
    kinds = list(dict.fromkeys(run.attention[0]["name"] for run in best_first))
    many, alike = len(runs) > LISTED, len({len(run.epochs) for run in runs}) == 1
    for run in best_first:
        steps = [(epoch.epoch + 1) * (run.settings.every or 1) for epoch in run.epochs]
        accuracy = [100 * epoch.metrics["accuracy"] for epoch in run.epochs]
        kind, convolved = run.attention[0]["name"], bool(run.attention[0].get("conv_kernel_size"))
        label = attention_text(run.attention) + ("" if alike else f", {steps[-1]:,} steps")
        if many:
            label = "_unnamed" if convolved else kind
        place = kinds.index(kind)
        look = {"color": f"C{place % 10}", "marker": "" if place < 10 else ".", "linewidth": 1.2}
        axis.plot(steps, accuracy, "--" if convolved else "-", label=label, **look)
    beside = {"title": "dashed: with the convolution", "loc": "center left", "bbox_to_anchor": (1, 0.5)}
    axis.legend(fontsize=8 if many else 7, title_fontsize=8, frameon=False, **(beside if many else {}))
