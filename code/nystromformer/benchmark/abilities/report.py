"""The tables and pictures of what was learned."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from nystromformer.benchmark.abilities.learning import HEADS, LAYERS, RATE, ROWS, SOLVED, WIDTH, Cell
from nystromformer.benchmark.abilities.tasks import TASKS
from nystromformer.benchmark.results import new_figure
from nystromformer.files.writing import write_figure
from nystromformer.tables import markdown


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


def to_read(table: pd.DataFrame, header: str, commands: Sequence[str]) -> str:
    """The page; with no commands, for a terminal, the tables alone."""
    parts = [_head(table, header, commands)] if commands else []
    for title, panel in _panels(table):
        parts += [f"## {title[0].upper()}{title[1:]}", _panel_table(panel)]
    return "\n\n".join(parts) + "\n"


def _head(table: pd.DataFrame, header: str, commands: Sequence[str]) -> str:
    limits = " or ".join(f"{seconds:g}" for seconds in sorted(table.limit.unique()))
    paragraphs = [
        "# Which attention can do what",
        f"An encoder of {LAYERS} layers of width {WIDTH} with {HEADS} heads learns a task from fresh rows, {ROWS} a "
        f"step, at a learning rate of {RATE:g}. It stops when it gives {SOLVED:.0%} of the answers of other rows "
        f"(bold, with the seconds that this took), or after {limits} seconds of one core. The table shows the "
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
