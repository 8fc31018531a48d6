"""Finished runs of the Long Range Arena beside the paper's Table 3: scores, time and memory."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

from nystromformer.config.network import NO_EFFECT
from nystromformer.report.families import (
    Columns,
    Family,
    commands_of,
    read_families,
    rows_of,
    say_power,
    warnings_of,
    write_report,
)
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
    "rows are simple rules without a network (`--baselines`)."
)
_OF_ATTENTION = {"attn_type", "num_landmarks", "conv_kernel_size"}


def write_lra(folders: Sequence[Path], out: Path) -> str:
    """Write the table as Markdown, and its figures as JSON beside it; returns the Markdown."""
    texts, columns = collect(folders)
    text = as_markdown(columns, texts)
    cells = [{"column": name, **each.record, **each.costs()} for name, own in columns.items() for each in own.values()]
    write_report(out, text, {"columns": texts, "cells": cells})
    return text


def collect(folders: Sequence[Path]) -> tuple[dict[str, str], dict[str, dict[str, Family]]]:
    """The headings of columns with what makes each what it is, and the families of each by their attention."""

    def is_scored(run: Run) -> bool:
        return "accuracy" in run.test_metrics and not run.settings.objective

    alike: dict[str, list[Family]] = {}
    for family in sorted(read_families(folders, "lra", "code/run_lra.py --task listops", is_scored), key=_order):
        alike.setdefault(_describe(family.first), []).append(family)
    described: dict[str, dict[str, Family]] = {}
    for text, several in alike.items():
        models = [family.first.model for family in several]
        keys = dict.fromkeys(key for model in models for key in model if key not in _OF_ATTENTION | NO_EFFECT)
        unlike = [key for key in keys if len({repr(model.get(key)) for model in models}) > 1]
        for family, model in zip(several, models, strict=True):
            own = ", ".join(f"{key} {json.dumps(model.get(key))}" for key in unlike)
            described.setdefault(f"{text}; {own}" if own else text, {})[family.first.attention_text] = family
    names = _name_columns(described)
    texts = dict(zip(names, described, strict=True))
    return texts, {name: described[text] for name, text in texts.items()}


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


def _name_columns(described: Columns) -> list[str]:
    """Short names of columns; of several of a task with a letter."""
    short = {task.lower(): task for task in LRA_TASKS}
    tasks = [family.task.name(family.first.choices) for family, *_ in (own.values() for own in described.values())]
    names = []
    for number, task in enumerate(tasks):
        name = next(text + task[len(key) :].replace("-", " ", 1) for key, text in short.items() if task.startswith(key))
        letter = ascii_lowercase[tasks[:number].count(task) % 26] if tasks.count(task) > 1 else ""
        names.append(f"{name} {letter}".rstrip())
    return names


def as_markdown(columns: Columns, texts: Mapping[str, str]) -> str:
    """The whole report.

    Args:
        texts: each column's description.
    """
    models, rules = rows_of(columns)
    reported = [[f"{name} (paper)", *(f"{value:.2f}" for value in row)] for name, row in PAPER_TABLE_3.items()]
    table = markdown(["attention", *columns], [*rules, *models])
    parts = ["# Long Range Arena", _LEGEND, table, say_power(columns)]
    parts.append("\n".join(f"- **{name}**: {text}" for name, text in texts.items()))
    if warnings := {f"- {name}: {text}" for name, own in columns.items() for text in warnings_of(own.values())}:
        parts += ["† What keeps these from comparing with published figures:", "\n".join(sorted(warnings))]
    parts += ["## Reported elsewhere", markdown(["", *LRA_TASKS], reported), "## Each figure", _details(columns)]
    commands = commands_of(family for own in columns.values() for family in own.values())
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _details(columns: Columns) -> str:
    rows: list[dict[str, str]] = []
    for name, own in columns.items():
        for family in own.values():
            costs = family.costs()
            rows.append(
                {
                    "column": name,
                    "attention": family.first.attention_text,
                    "seeds": ", ".join(map(str, family.seeds)),
                    "test": str(family.shown["accuracy"]),
                    "best validation": str(family.best("accuracy")),
                    "at step": ", ".join(f"{run.best_step:,}" for run in family.runs),
                    "hours": f"{sum(costs['seconds']) / len(family.runs) / 3600:.2f}",
                    "examples/s": "" if (pace := costs["examples_per_second"]) is None else f"{pace:.1f}",
                    "memory, MiB": f"{costs['memory_mib']:,.0f}",
                }
            )
    return markdown(list(rows[0]), [list(row.values()) for row in rows])
