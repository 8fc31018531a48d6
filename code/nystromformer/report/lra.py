"""Finished runs of the Long Range Arena beside the paper's Table 3: scores, time and memory, as table and pictures."""

import json
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from nystromformer.benchmark.results import new_figure
from nystromformer.config.network import NO_EFFECT
from nystromformer.errors import UserError
from nystromformer.files.checked_json import checked
from nystromformer.files.writing import write_figure, write_json, write_text
from nystromformer.report.finetuning import attention_text, phases_of, read_runs, read_times
from nystromformer.runs.baselines import beside
from nystromformer.runs.figures import MARKS, SmallestDifference, Spread, mark, power_note, smallest_difference
from nystromformer.runs.record import Run, spread_of
from nystromformer.tables import markdown
from nystromformer.tasks.declaration import task_of
from nystromformer.wording import number_of

LRA_TASKS = ("ListOps", "Text", "Retrieval", "Image", "Pathfinder", "average")
# Table 3 of the paper: accuracy in percent.
PAPER_TABLE_3: dict[str, tuple[float, ...]] = {
    "Standard": (37.10, 65.02, 79.35, 38.20, 74.16, 58.77),
    "Reformer": (19.05, 64.88, 78.64, 43.29, 69.36, 55.04),
    "Linformer": (37.25, 55.91, 79.37, 37.84, 67.60, 55.59),
    "Performer": (18.80, 63.81, 78.62, 37.07, 69.87, 53.63),
    "Nyströmformer": (37.15, 65.52, 79.56, 41.58, 70.94, 58.95),
}
# Tay et al. 2021 (arXiv 2011.04006), Table 1: other sizes of model and other recipes than the paper's.
TAY_TABLE_1: dict[str, tuple[float, ...]] = {
    "Transformer": (36.37, 64.27, 57.46, 42.44, 71.40, 54.39),
    "Local Attention": (15.82, 52.98, 53.39, 41.46, 66.63, 46.06),
    "Sparse Transformer": (17.07, 63.58, 59.59, 44.24, 71.71, 51.24),
    "Longformer": (35.63, 62.85, 56.89, 42.22, 69.71, 53.46),
    "Linformer": (35.70, 53.94, 52.27, 38.56, 76.34, 51.36),
    "Reformer": (37.27, 56.10, 53.40, 38.07, 68.50, 50.67),
    "Sinkhorn Transformer": (33.67, 61.20, 53.83, 41.23, 67.45, 51.39),
    "Synthesizer": (36.99, 61.68, 54.67, 41.61, 69.45, 52.88),
    "BigBird": (36.05, 64.02, 59.29, 40.83, 74.87, 55.01),
    "Linear Transformer": (16.13, 65.90, 53.09, 42.34, 75.30, 50.55),
    "Performer": (18.01, 65.40, 53.82, 42.77, 77.05, 51.41),
}
_LEGEND = (
    "Test accuracy in percent, of the weights that were best on the validation data: mean ± sample standard deviation "
    "over the seeds. The runs of a column differ only in the attention; how columns differ is listed below."
)
RULES = (
    "The first rows are simple rules without a network, fitted on the same training data and chosen on validation data "
    "(`--baselines`; experiments/lra/README.md describes each). The marks compare with the best rule of the column."
)
_OTHERWISE = (
    "Rows of one attention with letters in brackets differ in a setting that the table does not show, such as the "
    "optimizer; their commands show it."
)
_BUBBLE = 900
"""Points² of the run that took the most memory."""
_LEGEND_BUBBLE = 60


@dataclass(frozen=True)
class Cell:
    """Runs that differ in their seeds alone."""

    column: str
    attention: str
    seeds: list[int]
    test: Spread
    validation: Spread
    """At the best."""
    best_steps: list[int]
    hours: Spread
    """Of a run, without what it waited between two starts."""
    examples_per_second: float | None
    """While it learned the classes; None: too short a run to tell."""
    memory_mib: float
    """At the most."""
    parameters: dict[str, Any]
    """Of the attention in the first layer."""
    commands: list[str]
    device: str
    warnings: list[str]
    test_rows: int
    baselines: dict[str, float]
    """Test accuracy of the guessers on the same data, by their names; none where nobody measured them."""


@dataclass(frozen=True)
class Arena:
    """What is shown."""

    columns: dict[str, str]
    """Headings, and what makes each column what it is."""
    cells: list[Cell]
    unfinished: list[str] = field(default_factory=list)

    @property
    def guesses(self) -> dict[str, dict[str, float]]:
        """The guessers of each column, whose runs are all on the same data."""
        return {
            column: next((cell.baselines for cell in self.cells if cell.column == column and cell.baselines), {})
            for column in self.columns
        }


def write_lra(folders: Sequence[Path], out: Path, spans: Sequence[Path] = ()) -> str:
    """Write the table as Markdown, its figures as JSON beside it, and a picture for each column of several attentions.

    Args:
        folders: of experiments.
        out: the Markdown's file, NAME.md; pictures are NAME-COLUMN.png.
        spans: folders that `run_benchmark.py span` has written of such runs; none: the report says nothing of spans.

    Returns:
        The Markdown.

    Raises:
        UserError: another ending, a file that cannot be written, no experiment, no finished run, or no spans there.
    """
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")
    return write_arena(collect(folders), out, spans)


def write_arena(arena: Arena, out: Path, spans: Sequence[Path] = ()) -> str:
    """The same of runs that were collected."""
    text = as_markdown(arena, _spans_table(spans) if spans else "")
    write_text(out, text)
    write_json(out.with_suffix(".json"), {"columns": arena.columns, "cells": [asdict(cell) for cell in arena.cells]})
    for column in arena.columns:
        cells = [cell for cell in arena.cells if cell.column == column and cell.examples_per_second is not None]
        if len(cells) > 1:
            picture = out.with_name(f"{out.stem}-{column.replace(' ', '-').lower()}.png")
            draw(cells, arena.columns[column], picture)
    return text


def read_arena(path: Path) -> Arena:
    """What `write_arena` wrote as JSON.

    Raises:
        OSError, ValueError, LookupError: no such file, or something else is in it.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    return checked(Arena, {key: data[key] for key in ("columns", "cells")})


def collect(folders: Sequence[Path]) -> Arena:
    """The finished runs of some experiment folders.

    Raises:
        UserError: a folder is no experiment, a result cannot be read, or nothing is finished.
    """
    found: list[Run] = []
    unfinished: list[str] = []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        runs, begun = read_runs(folder, folder.name, "lra")
        found += [run for run in runs if "accuracy" in run.test_metrics and run.settings.objective is None]
        unfinished += begun
    if not found:
        waiting = f" (not finished: {', '.join(unfinished)})" if unfinished else ""
        places = ", ".join(map(str, folders)) or "no folder"
        raise UserError(
            f"{places}: expected finished runs with a test accuracy, found none{waiting}; run one first, such as "
            "python code/run_lra.py --task listops"
        )
    columns = _columns(sorted(found, key=_order))
    names = name_columns({text: task_of(runs[0].kind).name(runs[0].choices) for text, runs in columns.items()})
    cells = [cell for text, runs in columns.items() for cell in _cells(names[text], runs)]
    return Arena({names[text]: text for text in columns}, cells, unfinished)


def _columns(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each column, by its description: what they have in common, with what their models differ in."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_describe(run), []).append(run)
    columns: dict[str, list[Run]] = {}
    for text, several in alike.items():
        keys = dict.fromkeys(key for run in several for key in run.model if key not in _OF_ATTENTION | NO_EFFECT)
        unlike = [key for key in keys if len({repr(run.model.get(key)) for run in several}) > 1]
        for run in several:
            own = ", ".join(f"{key} {json.dumps(run.model.get(key))}" for key in unlike)
            columns.setdefault(f"{text}; {own}" if own else text, []).append(run)
    return columns


_OF_ATTENTION = {"attn_type", "num_landmarks", "conv_kernel_size"}


def _order(run: Run) -> tuple[int, str, int, str]:
    """The paper's order of tasks, the longest runs first."""
    place = [name.lower() for name in LRA_TASKS].index(run.choices["task"])
    return place, task_of(run.kind).name(run.choices), -run.settings.epochs * (run.settings.every or 1), run.data


def _describe(run: Run) -> str:
    """What a column's runs have in common: everything but the attention and the seed."""
    settings = run.settings
    steps = settings.epochs * (settings.every or 1)
    rows = " / ".join(f"{count:,}" for count in (*run.rows.values(), *run.test_rows.values()))
    padded = f", padded to {settings.pad_to:,}" if settings.pad_to is not None else ""
    begun = f", after {number_of(run.origin.step, 'step')} of masked tokens" if run.origin.checkpoint else ""
    return (
        f"{task_of(run.kind).name(run.choices)}: {number_of(steps, 'step')} of {settings.batch_size}, learning rate "
        f"{settings.learning_rate:g} after {settings.warmup:.1%} of warm-up, validated every "
        f"{number_of(settings.every or 0, 'step')}, rows of at most {run.length:,} tokens{padded}{begun}; "
        f"{rows} examples of training, validation and test (data {run.data[:8]})"
    )


def name_columns(tasks: Mapping[str, str]) -> dict[str, str]:
    """Short names of columns, given the task of each description; of several of a task with a letter."""
    short = {task.lower(): task for task in LRA_TASKS}
    names = {}
    for (text, task), letter in zip(tasks.items(), _letters(list(tasks.values())), strict=True):
        name = next(text + task[len(key) :].replace("-", " ", 1) for key, text in short.items() if task.startswith(key))
        names[text] = f"{name} {letter}".rstrip()
    return names


def _letters(names: Sequence[str]) -> list[str]:
    """A letter for each of several that have one name; nothing for the only one of its name."""
    return [
        ascii_lowercase[names[:number].count(name) % 26] if names.count(name) > 1 else ""
        for number, name in enumerate(names)
    ]


def _cells(column: str, runs: Sequence[Run]) -> list[Cell]:
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(run.family, []).append(run)
    cells = [_cell(column, sorted(family, key=lambda run: run.settings.seed)) for family in together.values()]
    # No score is lost: what differs in something that is not told has a letter.
    letters = _letters([cell.attention for cell in cells])
    return [
        replace(cell, attention=f"{cell.attention} [{letter}]") if letter else cell
        for cell, letter in zip(cells, letters, strict=True)
    ]


def _cell(column: str, runs: Sequence[Run]) -> Cell:
    first = runs[0]
    phases = [[read_times(folder) for folder in phases_of(run, "-tokens")] for run in runs]
    paces = [times[0].steps_per_second * first.settings.batch_size for times in phases if times[0].steps_per_second]
    warnings = list(first.every_warning)
    if any(run.origin.checkpoint and len(times) < 2 for run, times in zip(runs, phases, strict=True)):
        warnings.append("hours and memory are without the masked tokens that came first, whose run is not there")
    guesses = beside(first)
    return Cell(
        column=column,
        attention=attention_text(first.attention),
        seeds=[run.settings.seed for run in runs],
        test=spread_of(runs, lambda run: run.test_metrics["accuracy"]),
        validation=spread_of(runs, lambda run: run.best.metrics["accuracy"]),
        best_steps=[(run.best.epoch + 1) * (run.settings.every or 1) for run in runs],
        hours=Spread.of([sum(each.seconds for each in times) / 3600 for times in phases]),
        examples_per_second=statistics.median(paces) if paces else None,
        memory_mib=max(each.memory_mib for times in phases for each in times),
        parameters=dict(first.attention[0]),
        commands=[str(run.call) for run in runs],
        device=first.device,
        warnings=warnings,
        test_rows=sum(first.test_rows.values()),
        baselines={name: found["accuracy_test"].mean for name, found in guesses.items() if "accuracy_test" in found},
    )


def _spans_table(folders: Sequence[Path]) -> str:
    """The spans in some folders, as one table."""
    # Importing torch takes a second.
    from nystromformer.benchmark.span.compare import Spans, table

    spans: list[Spans] = []
    for folder in folders:
        try:
            spans += checked(list[Spans], json.loads((folder / "span.json").read_text())["spans"])
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"--span {folder}: expected the folder that run_benchmark.py span writes, with span.json ({error})"
            ) from None
    return table(spans)


def as_markdown(arena: Arena, spans: str = "") -> str:
    """The whole report.

    Args:
        spans: the table of how far the models attend, if there is one.
    """
    parts = ["# Long Range Arena", _LEGEND, markdown(*scores(arena)), MARKS, RULES]
    if note := power_note({column: _smallest(arena.cells, column) for column in arena.columns}):
        parts.append(note)
    if any(cell.attention.endswith("]") for cell in arena.cells):
        parts.append(_OTHERWISE)
    parts.append("\n".join(f"- **{name}**: {text}" for name, text in arena.columns.items()))
    said = {f"- {cell.column}: {text}" for cell in arena.cells for text in cell.warnings}
    if said:
        parts += ["What keeps these from comparing with published figures:", "\n".join(sorted(said))]
    if arena.unfinished:
        parts.append("Not finished: " + ", ".join(arena.unfinished) + ".")
    parts += ["## Reported elsewhere", _reported(arena), "## Each figure", _details(arena)]
    if spans:
        parts += ["## Required attention span", spans]
    commands = dict.fromkeys(command for cell in arena.cells for command in cell.commands)
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands)]
    return "\n\n".join(parts) + "\n"


def scores(arena: Arena) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the test accuracy of each guesser and each attention in each column."""
    guesses = arena.guesses
    guessers = dict.fromkeys(name for found in guesses.values() for name in found) or ["majority class"]
    rows = [[name, *(_guess(found, name) for found in guesses.values())] for name in guessers]
    shown = {(cell.attention, cell.column): _score(cell) for cell in arena.cells}
    for attention in dict.fromkeys(cell.attention for cell in arena.cells):
        rows.append([attention, *(shown.get((attention, column), "") for column in arena.columns)])
    return ["attention", *arena.columns], rows


def _guess(guesses: Mapping[str, float], name: str) -> str:
    if not guesses:
        return "not measured (--baselines)"
    return f"{100 * guesses[name]:.1f}" if name in guesses else ""


def _score(cell: Cell) -> str:
    baselines = [Spread(max(cell.baselines.values()), None)] if cell.baselines else []
    return f"{cell.test} {mark('accuracy', cell.test, baselines, cell.test_rows)}".rstrip()


def _smallest(cells: Sequence[Cell], column: str) -> SmallestDifference | None:
    own = [cell for cell in cells if cell.column == column]
    return smallest_difference("accuracy", [(cell.test, len(cell.seeds)) for cell in own], own[0].test_rows)


def best_guessers(arena: Arena) -> list[str]:
    """Of each task of the paper's table the best guesser on the first column's data."""
    best = []
    for task in LRA_TASKS:
        found: dict[str, float] = next((each for name, each in arena.guesses.items() if name.split()[0] == task), {})
        name = max(found, key=found.__getitem__, default=None)
        best.append("" if name is None else f"{100 * found[name]:.1f} ({name})")
    return ["best guesser, on the data above", *best]


def _reported(arena: Arena) -> str:
    rows = [best_guessers(arena)]
    for source, table in (("paper", PAPER_TABLE_3), ("Tay et al.", TAY_TABLE_1)):
        rows += [[f"{name} ({source})", *(f"{value:.2f}" for value in values)] for name, values in table.items()]
    return markdown(["", *LRA_TASKS], rows)


def _details(arena: Arena) -> str:
    rows = [
        {
            "column": cell.column,
            "attention": cell.attention,
            "seeds": ", ".join(map(str, cell.seeds)),
            "test": str(cell.test),
            "best validation": str(cell.validation),
            "at step": ", ".join(f"{step:,}" for step in cell.best_steps),
            "hours": f"{cell.hours.mean:.2f}",
            "examples/s": "" if cell.examples_per_second is None else f"{cell.examples_per_second:.1f}",
            "memory, MiB": f"{cell.memory_mib:,.0f}",
        }
        for cell in arena.cells
    ]
    return markdown(list(rows[0]), [list(row.values()) for row in rows])


_TITLE_WIDTH = 75
"""Characters of a line above the axes, so that it does not reach the legend."""


def draw(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Score over speed, the size of a bubble by its memory (Tay et al. 2021, Figure 3).

    Args:
        cells: whose speed is known.

    Raises:
        UserError: the picture cannot be written.
    """
    # Importing it takes a second.
    from matplotlib.collections import PathCollection

    figure_ = new_figure(10, 5.5)
    axes = figure_.add_subplot()
    most = max(cell.memory_mib for cell in cells) or 1.0
    best_first = sorted(cells, key=lambda cell: -cell.test.mean)
    for number, cell in enumerate(best_first):
        assert cell.examples_per_second is not None
        x, y = cell.examples_per_second, 100 * cell.test.mean
        color = f"C{number % 10}"
        label = f"{number + 1}: {cell.attention}, {cell.test}"
        axes.scatter(
            x, y, s=_BUBBLE * cell.memory_mib / most, alpha=0.55, color=color, linewidth=0, zorder=3, label=label
        )
        if cell.test.deviation is not None:
            axes.errorbar(x, y, yerr=100 * cell.test.deviation, color=color, capsize=3, linewidth=1)
        axes.annotate(str(number + 1), (x, y), ha="center", va="center", fontsize=8, zorder=4)
    legend = figure_.legend(loc="outside right upper", fontsize=8, frameon=False)
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([_LEGEND_BUBBLE])
    for name, value in next((cell.baselines for cell in cells if cell.baselines), {}).items():
        axes.axhline(100 * value, color="grey", linestyle=":", linewidth=1)
        place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 2), "textcoords": "offset points"}
        axes.annotate(name, (0.01, 100 * value), fontsize=8, **place)
    axes.set_xlabel(f"examples a second while training ({cells[0].device}); size: memory")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(textwrap.fill(title.partition(";")[0], _TITLE_WIDTH), fontsize=9)
    axes.margins(0.15)
    axes.grid(alpha=0.25)
    write_figure(path, figure_, dpi=120)
