"""Finished runs of the Long Range Arena beside the paper's Table 3: scores, time and memory."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_lowercase

from nystromformer.config.attention_text import attention_text
from nystromformer.config.network import NO_EFFECT
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.report.finetuning import read_runs, read_times
from nystromformer.runs.baselines import beside
from nystromformer.runs.figures import MARKS, Spread, mark, power_note, smallest_difference
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
_LEGEND = (
    "Test accuracy in percent, of the weights that were best on the validation data: mean ± sample standard deviation "
    "over the seeds. The runs of a column differ only in the attention; how columns differ is listed below. The first "
    "rows are simple rules without a network (`--baselines`); the marks compare with the best of the column."
)
_OF_ATTENTION = {"attn_type", "num_landmarks", "conv_kernel_size"}


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
    """None: too short a run to tell."""
    memory_mib: float
    """At the most."""
    commands: list[str]
    device: str
    warnings: list[str]
    test_rows: int
    baselines: dict[str, float]
    """Test accuracy of the simple rules on the same data, by their names; none where nobody measured them."""


@dataclass(frozen=True)
class Arena:
    """What is shown."""

    columns: dict[str, str]
    """Headings, and what makes each column what it is."""
    cells: list[Cell]

    def of(self, column: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.column == column]


def write_lra(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown, and its figures as JSON beside it; returns the Markdown.

    Raises:
        UserError: another ending, a file that cannot be written, no experiment or no finished run.
    """
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")
    arena = collect(folders)
    text = as_markdown(arena)
    write_text(out, text)
    write_json(out.with_suffix(".json"), {"columns": arena.columns, "cells": [asdict(cell) for cell in arena.cells]})
    return text


def collect(folders: Sequence[Path]) -> Arena:
    """The finished runs of some experiment folders.

    Raises:
        UserError: a folder is no experiment, a result cannot be read, or nothing is finished.
    """
    known = [read_runs(folder, folder.name, "lra") for folder in dict.fromkeys(path.resolve() for path in folders)]
    found = [run for runs, _ in known for run in runs if "accuracy" in run.test_metrics and not run.settings.objective]
    if not found:
        places = ", ".join(map(str, folders)) or "no folder"
        begun = ", ".join(place for _, unfinished in known for place in unfinished) or "none"
        raise UserError(
            f"{places}: expected finished runs with a test accuracy, found none (not finished: {begun}); run one "
            "first, such as python code/run_lra.py --task listops"
        )
    columns = _columns(sorted(found, key=_order))
    names = name_columns({text: task_of(runs[0].kind).name(runs[0].choices) for text, runs in columns.items()})
    cells = []
    for text, runs in columns.items():
        families: dict[str, list[Run]] = {}
        for run in runs:
            families.setdefault(run.family, []).append(run)
        cells += [_cell(names[text], family) for family in families.values()]
    return Arena({names[text]: text for text in columns}, cells)


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


def _order(run: Run) -> tuple[int, str, int, str]:
    """The paper's order of tasks, the longest runs first."""
    place = [name.lower() for name in LRA_TASKS].index(run.choices["task"])
    return place, task_of(run.kind).name(run.choices), -(run.settings.steps or 0), run.data


def _describe(run: Run) -> str:
    """What a column's runs have in common: everything but the attention and the seed."""
    settings = run.settings
    steps = settings.steps or 0
    rows = " / ".join(f"{count:,}" for count in (*run.rows.values(), *run.test_rows.values()))
    padded = f", padded to {settings.pad_to:,}" if settings.pad_to is not None else ""
    return (
        f"{task_of(run.kind).name(run.choices)}: {number_of(steps, 'step')} of {settings.batch_size}, learning rate "
        f"{settings.learning_rate:g} after {settings.warmup:.1%} of warm-up, validated every "
        f"{number_of(settings.every or 0, 'step')}, rows of at most {run.length:,} tokens{padded}; {rows} examples of "
        f"training, validation and test (data {run.data[:8]})"
    )


def name_columns(tasks: Mapping[str, str]) -> dict[str, str]:
    """Short names of columns, given the task of each description; of several of a task with a letter."""
    short, found = {task.lower(): task for task in LRA_TASKS}, list(tasks.values())
    names = {}
    for number, (text, task) in enumerate(tasks.items()):
        name = next(text + task[len(key) :].replace("-", " ", 1) for key, text in short.items() if task.startswith(key))
        letter = ascii_lowercase[found[:number].count(task) % 26] if found.count(task) > 1 else ""
        names[text] = f"{name} {letter}".rstrip()
    return names


def _cell(column: str, family: Sequence[Run]) -> Cell:
    runs = sorted(family, key=lambda run: run.settings.seed)
    first, times = runs[0], [read_times(run.folder) for run in runs]
    paces = [each.steps_per_second * first.settings.batch_size for each in times if each.steps_per_second]
    return Cell(
        column=column,
        attention=attention_text(first.attention),
        seeds=[run.settings.seed for run in runs],
        test=spread_of(runs, lambda run: run.test_metrics["accuracy"]),
        validation=spread_of(runs, lambda run: run.best.metrics["accuracy"]),
        best_steps=[run.best_step for run in runs],
        hours=Spread.of([each.seconds / 3600 for each in times]),
        examples_per_second=statistics.median(paces) if paces else None,
        memory_mib=max(each.memory_mib for each in times),
        commands=[str(run.call) for run in runs],
        device=first.device,
        warnings=list(first.every_warning),
        test_rows=sum(first.test_rows.values()),
        baselines={name: each["accuracy_test"].mean for name, each in beside(first).items() if "accuracy_test" in each},
    )


def as_markdown(arena: Arena) -> str:
    """The whole report."""
    smallest = {
        column: smallest_difference("accuracy", [(cell.test, len(cell.seeds)) for cell in cells], cells[0].test_rows)
        for column, cells in ((column, arena.of(column)) for column in arena.columns)
    }
    reported = [[f"{name} (paper)", *(f"{value:.2f}" for value in row)] for name, row in PAPER_TABLE_3.items()]
    parts = ["# Long Range Arena", _LEGEND, markdown(*scores(arena)), MARKS, power_note(smallest)]
    parts.append("\n".join(f"- **{name}**: {text}" for name, text in arena.columns.items()))
    if said := {f"- {cell.column}: {text}" for cell in arena.cells for text in cell.warnings}:
        parts += ["What keeps these from comparing with published figures:", "\n".join(sorted(said))]
    parts += ["## Reported elsewhere", markdown(["", *LRA_TASKS], reported), "## Each figure", _details(arena)]
    commands = dict.fromkeys(command for cell in arena.cells for command in cell.commands)
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands)]
    return "\n\n".join(part for part in parts if part) + "\n"


def scores(arena: Arena) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the test accuracy of each simple rule and each attention in each column."""
    rules = [next((cell.baselines for cell in arena.of(column) if cell.baselines), {}) for column in arena.columns]
    rows = []
    for name in dict.fromkeys(name for found in rules for name in found) or ["majority class"]:
        unknown = ("" if found else "not measured (--baselines)" for found in rules)
        known = zip(rules, unknown, strict=True)
        rows.append([name, *(f"{100 * found[name]:.1f}" if name in found else other for found, other in known)])
    for attention in dict.fromkeys(cell.attention for cell in arena.cells):
        row = [attention]
        for column in arena.columns:
            scored = []
            for cell in (cell for cell in arena.of(column) if cell.attention == attention):
                best = [Spread(max(cell.baselines.values()), None)] if cell.baselines else []
                scored.append(f"{cell.test} {mark('accuracy', cell.test, best, cell.test_rows)}".rstrip())
            row.append("; ".join(scored))
        rows.append(row)
    return ["attention", *arena.columns], rows


def _details(arena: Arena) -> str:
    header = [
        "column",
        "attention",
        "seeds",
        "test",
        "best validation",
        "at step",
        "hours",
        "examples/s",
        "memory, MiB",
    ]
    rows = []
    for cell in arena.cells:
        seeds, steps = (", ".join(f"{each:,}" for each in several) for several in (cell.seeds, cell.best_steps))
        pace = "" if cell.examples_per_second is None else f"{cell.examples_per_second:.1f}"
        figures = [str(cell.test), str(cell.validation), steps, f"{cell.hours.mean:.2f}", pace]
        rows.append([cell.column, cell.attention, seeds, *figures, f"{cell.memory_mib:,.0f}"])
    return markdown(header, rows)
