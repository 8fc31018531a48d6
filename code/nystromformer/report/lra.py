"""Finished runs of the Long Range Arena beside the paper's Table 3: scores, time and memory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from nystromformer.config.network import NO_EFFECT
from nystromformer.report.families import Family, check_out, read_families, write_report
from nystromformer.runs.figures import MARKS, Spread, mark, power_note, smallest_difference
from nystromformer.runs.record import Run
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

Cells = Sequence[Mapping[str, Any]]
"""What stands in the table: a family's `column`, `attention`, `seeds`, `test` and best `validation` accuracy and the
`hours` of a run as `Spread`s have them, `best_steps`, `examples_per_second`, `memory_mib`, `commands`, `device`,
`warnings`, `test_rows`, and the `baselines`' test accuracies by their names.
"""


def write_lra(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown, and its figures as JSON beside it; returns the Markdown.

    Raises:
        UserError: another ending, a file that cannot be written, or as `read_families`.
    """
    check_out(out)
    columns, cells = collect(folders)
    text = as_markdown(columns, cells)
    write_report(out, text, {"columns": columns, "cells": cells})
    return text


def collect(folders: Sequence[Path]) -> tuple[dict[str, str], Cells]:
    """The headings of columns with what makes each what it is, and the cells.

    Raises:
        UserError: as `read_families`.
    """

    def is_scored(run: Run) -> bool:
        return "accuracy" in run.test_metrics and not run.settings.objective

    families, _ = read_families(folders, "lra", is_scored, "such as python code/run_lra.py --task listops")
    columns = _columns(sorted(families, key=_order))
    names = _name_columns({text: each[0].task.name(each[0].first.choices) for text, each in columns.items()})
    cells = [_cell(names[text], family) for text, several in columns.items() for family in several]
    return {names[text]: text for text in columns}, cells


def _columns(families: Sequence[Family]) -> dict[str, list[Family]]:
    """The families of each column, by its description: what they have in common, with what their models differ in."""
    alike: dict[str, list[Family]] = {}
    for family in families:
        alike.setdefault(_describe(family.first), []).append(family)
    columns: dict[str, list[Family]] = {}
    for text, several in alike.items():
        models = [family.first.model for family in several]
        keys = dict.fromkeys(key for model in models for key in model if key not in _OF_ATTENTION | NO_EFFECT)
        unlike = [key for key in keys if len({repr(model.get(key)) for model in models}) > 1]
        for family, model in zip(several, models, strict=True):
            own = ", ".join(f"{key} {json.dumps(model.get(key))}" for key in unlike)
            columns.setdefault(f"{text}; {own}" if own else text, []).append(family)
    return columns


def _order(family: Family) -> tuple[int, str, int, str]:
    """The paper's order of tasks, the longest runs first."""
    run = family.first
    place = [name.lower() for name in LRA_TASKS].index(run.choices["task"])
    return place, family.task.name(run.choices), -(run.settings.steps or 0), run.data


def _describe(run: Run) -> str:
    """What a column's runs have in common: everything but the attention and the seed."""
    settings, steps = run.settings, run.settings.steps or 0
    rows = " / ".join(f"{count:,}" for count in (*run.rows.values(), *run.test_rows.values()))
    padded = f", padded to {settings.pad_to:,}" if settings.pad_to is not None else ""
    return (
        f"{task_of(run.kind).name(run.choices)}: {number_of(steps, 'step')} of {settings.batch_size}, learning rate "
        f"{settings.learning_rate:g} after {settings.warmup:.1%} of warm-up, validated every "
        f"{number_of(settings.every or 0, 'step')}, rows of at most {run.length:,} tokens{padded}; {rows} examples of "
        f"training, validation and test (data {run.data[:8]})"
    )


def _name_columns(tasks: Mapping[str, str]) -> dict[str, str]:
    """Short names of columns, given the task of each description; of several of a task with a letter."""
    short, found = {task.lower(): task for task in LRA_TASKS}, list(tasks.values())
    names = {}
    for number, (text, task) in enumerate(tasks.items()):
        name = next(text + task[len(key) :].replace("-", " ", 1) for key, text in short.items() if task.startswith(key))
        letter = ascii_lowercase[found[:number].count(task) % 26] if found.count(task) > 1 else ""
        names[text] = f"{name} {letter}".rstrip()
    return names


def _cell(column: str, family: Family) -> dict[str, Any]:
    costs, record = family.costs(), family.record
    seconds = costs.pop("seconds")
    return {
        "column": column,
        **{key: record[key] for key in ("attention", "seeds", "device", "warnings")},
        "test": record["shown"]["accuracy"],
        "validation": record["best"]["accuracy"],
        "best_steps": [run.best_step for run in family.runs],
        "hours": vars(Spread.of([each / 3600 for each in seconds])),
        **costs,
        "commands": [str(run.call) for run in family.runs],
        "test_rows": sum(family.first.test_rows.values()),
        "baselines": {name: each["accuracy"].mean for name, each in family.baselines.items() if each},
    }


def as_markdown(columns: Mapping[str, str], cells: Cells) -> str:
    """The whole report."""
    of = {column: [cell for cell in cells if cell["column"] == column] for column in columns}
    smallest = {
        column: smallest_difference(
            "accuracy", [(Spread(**cell["test"]), len(cell["seeds"])) for cell in own], own[0]["test_rows"]
        )
        for column, own in of.items()
    }
    reported = [[f"{name} (paper)", *(f"{value:.2f}" for value in row)] for name, row in PAPER_TABLE_3.items()]
    parts = ["# Long Range Arena", _LEGEND, markdown(*scores(of)), MARKS, power_note(smallest)]
    parts.append("\n".join(f"- **{name}**: {text}" for name, text in columns.items()))
    if said := {f"- {cell['column']}: {text}" for cell in cells for text in cell["warnings"]}:
        parts += ["What keeps these from comparing with published figures:", "\n".join(sorted(said))]
    parts += ["## Reported elsewhere", markdown(["", *LRA_TASKS], reported), "## Each figure", _details(cells)]
    commands = dict.fromkeys(command for cell in cells for command in cell["commands"])
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands)]
    return "\n\n".join(part for part in parts if part) + "\n"


def scores(of: Mapping[str, Cells]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the test accuracy of each simple rule and each attention in each column."""
    rules: list[Mapping[str, float]] = [
        next((cell["baselines"] for cell in own if cell["baselines"]), {}) for own in of.values()
    ]
    rows = []
    for name in dict.fromkeys(name for found in rules for name in found) or ["majority class"]:
        unknown = ("" if found else "not measured (--baselines)" for found in rules)
        known = zip(rules, unknown, strict=True)
        rows.append([name, *(f"{100 * found[name]:.1f}" if name in found else other for found, other in known)])
    for attention in dict.fromkeys(cell["attention"] for own in of.values() for cell in own):
        row = [attention]
        for own in of.values():
            scored = []
            for cell in (cell for cell in own if cell["attention"] == attention):
                test, best = Spread(**cell["test"]), [Spread(max(cell["baselines"].values(), default=0.0), None)]
                sign = mark("accuracy", test, best if cell["baselines"] else [], cell["test_rows"])
                scored.append(f"{test} {sign}".rstrip())
            row.append("; ".join(scored))
        rows.append(row)
    return ["attention", *of], rows


def _details(cells: Cells) -> str:
    header = ["column", "attention", "seeds", "test", "best validation", "at step", "hours", "examples/s"]
    rows = []
    for cell in cells:
        seeds, steps = (", ".join(f"{each:,}" for each in cell[key]) for key in ("seeds", "best_steps"))
        pace = "" if cell["examples_per_second"] is None else f"{cell['examples_per_second']:.1f}"
        figures = [str(Spread(**cell["test"])), str(Spread(**cell["validation"])), steps]
        costs = [f"{cell['hours']['mean']:.2f}", pace, f"{cell['memory_mib']:,.0f}"]
        rows.append([cell["column"], cell["attention"], seeds, *figures, *costs])
    return markdown([*header, "memory, MiB"], rows)
