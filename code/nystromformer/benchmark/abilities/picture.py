"""Accuracy by task, and by budget."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from nystromformer.benchmark.abilities.learning import SOLVED, Cell
from nystromformer.benchmark.abilities.report import Budget, budgets, by_place, columns, panels
from nystromformer.benchmark.results import new_figure
from nystromformer.files import write_figure


def draw_table(cells: Sequence[Cell], path: Path, header: str) -> None:
    """A field for each attention and task, as dark as accuracy is high; a panel for each length and convolution."""

    found = panels(cells)
    labels = sorted({cell.setting.label for cell in cells}, key=lambda label: (label != "softmax", label))
    widths = [len(columns(inside)) for inside in found.values()]
    figure = new_figure(4.2 + 0.62 * sum(widths), 1.9 + 0.27 * len(labels))
    axes = figure.subplots(1, len(found), squeeze=False, width_ratios=widths)[0]
    for number, (axis, (panel, inside)) in enumerate(zip(axes, found.items(), strict=True)):
        places, names = by_place(inside), columns(inside)
        means = [
            [
                100 * mean(cell.accuracy for cell in places[label, name]) if (label, name) in places else float("nan")
                for name in names
            ]
            for label in labels
        ]
        axis.imshow(means, vmin=0, vmax=100, cmap="Blues", aspect="auto")
        for row, values in enumerate(means):
            for place, value in enumerate(values):
                if value == value:
                    colour = "white" if value > 60 else "black"
                    axis.text(place, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=7)
        axis.set_yticks(range(len(labels)), labels if number == 0 else [""] * len(labels), fontsize=7)
        axis.set_title(panel.title, fontsize=8)
    figure.suptitle(f"accuracy in %\n{header}", fontsize=8)
    write_figure(path, figure, dpi=120)


def draw_budgets(cells: Sequence[Cell], path: Path, header: str) -> None:
    """Mean accuracy over the parameter's value as a share of the length, from the least seed's to the greatest's; a
    panel for each task, length and convolution, with the attentions that have no such parameter as level lines.
    """
    from matplotlib import colormaps

    found = budgets(cells)
    tasks = [name for name in columns(cells) if any(each.task == name for each in found)]
    rows = [panel for panel in panels(cells) if any(each.panel == panel for each in found)]
    figure = new_figure(1 + 3.1 * len(tasks), 0.9 + 2.5 * len(rows))
    axes = figure.subplots(len(rows), len(tasks), squeeze=False, sharey=True)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    labels = list(dict.fromkeys(_name(each) for each in found))
    level = [label for label in ("softmax", "linear") if any(cell.setting.label == label for cell in cells)]
    for panel, line in zip(rows, axes, strict=True):
        for task, axis in zip(tasks, line, strict=True):
            for each in found:
                if (each.panel, each.task) != (panel, task):
                    continue
                shares = [value / panel.length for value in each.cells]
                accuracies = [[100 * cell.accuracy for cell in ones] for ones in each.cells.values()]
                colour = colours[labels.index(_name(each)) % 10]
                axis.plot(shares, list(map(mean, accuracies)), "o-", ms=3, color=colour, label=_name(each))
                axis.fill_between(
                    shares, list(map(min, accuracies)), list(map(max, accuracies)), color=colour, alpha=0.15
                )
            for name, style in zip(level, ("-", "--"), strict=False):
                ones = by_place(panels(cells)[panel]).get((name, task))
                if ones:
                    axis.axhline(100 * mean(cell.accuracy for cell in ones), color="black", ls=style, lw=1, label=name)
            axis.axhline(100 * SOLVED, color="lightgray", lw=0.8)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{task}; {panel.title}", fontsize=7)
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("accuracy in %", fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("the parameter's value over the length", fontsize=7)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    figure.suptitle(header, fontsize=8)
    write_figure(path, figure, dpi=120)


def _name(budget: Budget) -> str:
    return f"{budget.label}: {budget.parameter}"
