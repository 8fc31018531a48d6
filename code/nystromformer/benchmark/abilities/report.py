"""The tables and pictures of what was learned."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nystromformer.benchmark.abilities.learning import HEADS, LAYERS, RATE, ROWS, SOLVED, WIDTH, Cell
from nystromformer.benchmark.abilities.tasks import TASKS
from nystromformer.benchmark.efficiency.methods import label_attention
from nystromformer.benchmark.results import new_figure
from nystromformer.files.writing import write_figure
from nystromformer.tables import markdown

_ENOUGH = (
    f"The least value of the parameter from which on every seed reaches {SOLVED:.0%}, of the values in brackets. A "
    "dash: the greatest is not enough either."
)


def tabulate(cells: Sequence[Cell]) -> pd.DataFrame:
    """A row for each cell, in the order of the tables; accuracies in %."""
    rows = []
    for cell in cells:
        setting = cell.setting
        rows.append(
            {
                "length": setting.length,
                "taps": setting.taps,
                "place": (list(TASKS).index(setting.task), setting.pairs or 0),
                "column": setting.column,
                "label": setting.label,
                "attention": setting.attention,
                "limit": setting.seconds,
                "accuracy": 100 * cell.accuracy,
                "guessing": 100 * cell.guessing,
                "solved": cell.solved,
                "seconds": cell.seconds,
                "commit": cell.commit,
            }
        )
    return pd.DataFrame(rows).sort_values(["length", "taps", "place"], kind="stable")


def _panels(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """What one table shows: the rows of a length and a convolution, and its title."""
    for (length, taps), rows in table.groupby(["length", "taps"]):
        yield f"{length} tokens, " + (f"convolution of {taps} taps" if taps else "no convolution"), rows


def _labels(table: pd.DataFrame) -> list[str]:
    """Attentions in order, softmax first."""
    return sorted(table.label.unique(), key=lambda label: (label != "softmax", label))


@dataclass(frozen=True)
class Budget:
    """Settings of one attention that differ in one parameter, on one task."""

    panel: str
    task: str
    label: str
    """Of the attention with its other parameters."""
    parameter: str
    values: pd.DataFrame
    """By the parameter's value: whether every seed solved the task, and `mean`, `min` and `max` of their accuracy."""

    @property
    def enough(self) -> int | None:
        """The least value from which on every seed solves the task; None where the greatest does not."""
        solved = self.values.solved[::-1].cummin()[::-1]
        return int(solved.idxmax()) if solved.any() else None


def find_budgets(table: pd.DataFrame) -> list[Budget]:
    """Of each attention that was measured with several values of a parameter: these, task by task.

    The parameter is the one of which there are most values; what else differs is another label.
    """
    found = []
    for panel, inside in _panels(table):
        for (_, task), rows in inside.groupby([inside.attention.str["name"], "column"], sort=False):
            parameter = _varied_parameter(rows.attention)
            if parameter is None:
                continue
            left_out = ("name", "conv_kernel_size", parameter)
            labels = [
                label_attention(each["name"], {key: value for key, value in each.items() if key not in left_out})
                for each in rows.attention
            ]
            rows = rows.assign(budget=labels, value=rows.attention.str[parameter])
            for label, group in rows[rows.value.notna()].groupby("budget", sort=False):
                by_value = group.groupby(group.value.astype(int))
                values = by_value.accuracy.agg(["mean", "min", "max"]).assign(solved=by_value.solved.all())
                if len(values) > 1:
                    found.append(Budget(panel, task, str(label), parameter, values))
    return found


def _varied_parameter(attentions: Iterable[Mapping[str, object]]) -> str | None:
    """Of whole numbers, the one of which there are most values; None where each has one value."""
    values: dict[str, set[object]] = {}
    for attention in attentions:
        for key, value in attention.items():
            if type(value) is int and key != "conv_kernel_size":
                values.setdefault(key, set()).add(value)
    most = max(values, key=lambda key: len(values[key]), default=None)
    return most if most is not None and len(values[most]) > 1 else None


def to_read(table: pd.DataFrame, header: str, commands: Sequence[str]) -> str:
    """The page; with no commands, for a terminal, the tables alone."""
    parts = [_head(table, header, commands)] if commands else []
    for title, panel in _panels(table):
        parts += [f"## {title[0].upper()}{title[1:]}", _panel_table(panel)]
    if found := find_budgets(table):
        parts += ["## The least budget that is enough", _ENOUGH, _budget_table(found)]
    return "\n\n".join(parts) + "\n"


def _head(table: pd.DataFrame, header: str, commands: Sequence[str]) -> str:
    paragraphs = [
        "# Which attention can do what",
        f"An encoder of {LAYERS} layers of width {WIDTH} with {HEADS} heads learns a task from fresh rows, {ROWS} a "
        f"step, at a learning rate of {RATE:g}. It stops when it gives {SOLVED:.0%} of the answers of other rows "
        f"(bold, with the seconds that this took), or after {_limits(table)} seconds of one core. The table shows the "
        "accuracy in % on further rows, with at least 2,048 answers: its standard error is at most 1.1 points, and "
        "0.22 at 99 %. With several seeds it shows the mean, and the least and the greatest in brackets. Positions are "
        "learned; those of recall are rotary, except for synthesizer, which compares no queries with keys. "
        "*guessing* is the accuracy of the task's simplest rule, without any learning: "
        + "; ".join(f"{name}, {task(64, None).rule}" for name, task in TASKS.items())
        + ".",
        f"{header}, commits {', '.join(sorted(table.commit.unique()))}; {table.seconds.sum() / 3600:.1f} core-hours.",
        "\n".join(f"`{command}`" for command in commands),
    ]
    return "\n\n".join(paragraphs)


def _limits(table: pd.DataFrame) -> str:
    """The seconds after which cells end, with the columns that have others than most."""
    columns = table.sort_index().groupby("limit", sort=False).column.unique()
    most, *few = sorted(columns.items(), key=lambda item: -len(item[1]))
    others = "; ".join(f"{seconds:g} for {', '.join(names)}" for seconds, names in few)
    return f"{most[0]:g}" + (f" ({others})" if others else "")


def _panel_table(panel: pd.DataFrame) -> str:
    names = panel.column.unique()
    shown = {place: _cell(rows) for place, rows in panel.groupby(["label", "column"])}
    lines = [[f"`{label}`", *(shown.get((label, name), "") for name in names)] for label in _labels(panel)]
    guessing = panel.groupby("column").guessing.mean()
    return markdown(["attention", *names], [*lines, ["*guessing*", *(f"{guessing[name]:.1f}" for name in names)]])


def _cell(rows: pd.DataFrame) -> str:
    text = f"{rows.accuracy.mean():.1f}"
    if len(rows) > 1:
        text += f" ({rows.accuracy.min():.1f} to {rows.accuracy.max():.1f})"
    return f"**{text}** ({rows.seconds.mean():.0f} s)" if rows.solved.all() else text


def _budget_table(found: Sequence[Budget]) -> str:
    rows: dict[str, dict[str, str]] = {}
    for each in found:
        tried = ", ".join(map(str, each.values.index))
        enough = "–" if each.enough is None else f"**{each.enough}**"
        row = rows.setdefault(f"`{each.label}`: {each.parameter}", {})
        row[f"{each.task}, {each.panel}"] = f"{enough} ({tried})"
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    return markdown(
        ["attention", *names], [[label, *(row.get(name, "") for name in names)] for label, row in rows.items()]
    )


def draw_table(table: pd.DataFrame, path: Path, header: str) -> None:
    """A field for each attention and task, as dark as accuracy is high; a panel for each length and convolution."""
    panels = list(_panels(table))
    labels = _labels(table)
    widths = [panel.column.nunique() for _, panel in panels]
    picture = new_figure(4.2 + 0.62 * sum(widths), 1.9 + 0.27 * len(labels))
    axes = picture.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for number, (axis, (title, panel)) in enumerate(zip(axes, panels, strict=True)):
        names = panel.column.unique()
        means = panel.pivot_table(index="label", columns="column", values="accuracy").reindex(labels)[names].to_numpy()
        axis.imshow(means, vmin=0, vmax=100, cmap="Blues", aspect="auto")
        for row, values in enumerate(means):
            for place, value in enumerate(values):
                if value == value:
                    colour = "white" if value > 60 else "black"
                    axis.text(place, row, f"{value:.0f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=7)
        axis.set_yticks(range(len(labels)), labels if number == 0 else [""] * len(labels), fontsize=7)
        axis.set_title(title, fontsize=8)
    picture.suptitle(f"accuracy in %\n{header}", fontsize=8)
    write_figure(path, picture, dpi=120)


def draw_budgets(table: pd.DataFrame, path: Path, header: str) -> None:
    """Mean accuracy over the parameter's value as a share of the length, from the least seed's to the greatest's; a
    panel for each task, length and convolution, with the attentions that have no such parameter as level lines.
    """
    from matplotlib import colormaps

    found = find_budgets(table)
    measured = {budget.task for budget in found}
    tasks = [name for name in table.sort_values("place", kind="stable").column.unique() if name in measured]
    panels = [(title, panel) for title, panel in _panels(table) if title in {budget.panel for budget in found}]
    picture = new_figure(1 + 3.1 * len(tasks), 0.9 + 2.5 * len(panels))
    axes = picture.subplots(len(panels), len(tasks), squeeze=False, sharey=True)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    names = list(dict.fromkeys(f"{each.label}: {each.parameter}" for each in found))
    level = [label for label in ("softmax", "linear") if label in set(table.label)]
    for (title, panel), line in zip(panels, axes, strict=True):
        for task, axis in zip(tasks, line, strict=True):
            for each in found:
                if (each.panel, each.task) != (title, task):
                    continue
                shares = each.values.index / panel.length.iloc[0]
                name = f"{each.label}: {each.parameter}"
                colour = colours[names.index(name) % 10]
                axis.plot(shares, each.values["mean"], "o-", ms=3, color=colour, label=name)
                axis.fill_between(shares, each.values["min"], each.values["max"], color=colour, alpha=0.15)
            for label, style in zip(level, ("-", "--"), strict=False):
                rows = panel[(panel.label == label) & (panel.column == task)]
                if len(rows):
                    axis.axhline(rows.accuracy.mean(), color="black", ls=style, lw=1, label=label)
            axis.axhline(100 * SOLVED, color="lightgray", lw=0.8)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{task}; {title}", fontsize=7)
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("accuracy in %", fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("the parameter's value over the length", fontsize=7)
    handles = {
        label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    picture.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    picture.suptitle(header, fontsize=8)
    write_figure(path, picture, dpi=120)
