"""Finished runs of the Long Range Arena beside the paper's Table 3: scores, time and memory, as table and pictures."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from nystromformer.checked_json import checked
from nystromformer.config.network import NO_EFFECT
from nystromformer.errors import UserError
from nystromformer.files import sha256_of, write_figure, write_json, write_text
from nystromformer.report.finetuning import attention_text, declaration_of
from nystromformer.report.paper import LRA_TASKS, PAPER_TABLE_3
from nystromformer.runs.baselines import BASELINES, find_baselines, read_baselines
from nystromformer.runs.figures import MARKS, SmallestDifference, Spread, mark, power_note, smallest_difference
from nystromformer.runs.record import Run, find_runs, find_unfinished, spread_of
from nystromformer.tables import markdown
from nystromformer.tasks.declaration import task_of
from nystromformer.tasks.experiment.folder import read_experiment
from nystromformer.training.log import read_log
from nystromformer.wording import number_of

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
    "over the seeds. Within a column all but the attention is the same; columns differ in what stands below."
)
RULES = (
    "The first rows are guessers without a network, on the same data: fitted on training, chosen on validation "
    "(`--baselines`; experiments/lra/README.md says what each reads). The marks compare with the best guesser of the "
    "column."
)
_OTHERWISE = (
    "Rows of one attention with letters in brackets differ in what neither the table nor the columns tell, such as the "
    "optimizer; their commands do."
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
    unfinished: list[str]


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


def collect(folders: Sequence[Path]) -> Arena:
    """The finished runs of some experiment folders.

    Raises:
        UserError: a folder is no experiment, a result cannot be read, or nothing is finished.
    """
    found: list[Run] = []
    unfinished: list[str] = []
    for folder in dict.fromkeys(path.resolve() for path in folders):
        checkpoints = read_experiment(folder).checkpoints
        found += [run for run in find_runs(checkpoints) if _is_shown(run)]
        unfinished += [f"{folder.name}/{place.relative_to(checkpoints)}" for place in find_unfinished(checkpoints)]
    if not found:
        begun = f" (not finished: {', '.join(unfinished)})" if unfinished else ""
        raise UserError(
            f"{', '.join(map(str, folders))}: expected finished runs, found none{begun}; run one first, such as "
            "python code/run_lra.py --task listops"
        )
    columns = _columns(sorted(found, key=_order))
    names = name_columns({text: task_of(runs[0].kind).name(runs[0].choices) for text, runs in columns.items()})
    cells = [cell for text, runs in columns.items() for cell in _cells(names[text], runs)]
    return Arena({names[text]: text for text in columns}, cells, unfinished)


def _is_shown(run: Run) -> bool:
    return declaration_of(run).table == "lra" and "accuracy" in run.test_metrics


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
    costs = [_cost(run) for run in runs]
    paces = [cost.examples_per_second for cost in costs if cost.examples_per_second is not None]
    warnings = list(first.every_warning)
    if not all(cost.is_whole for cost in costs):
        warnings.append("hours and memory are without the masked tokens that came first, whose run is not there")
    tested = first.tested.data if first.tested is not None else None
    measured = find_baselines(read_baselines(first.folder.parent / BASELINES), first.data, tested)
    guesses = measured.baselines if measured is not None else {}
    return Cell(
        column=column,
        attention=attention_text(first.attention),
        seeds=[run.settings.seed for run in runs],
        test=spread_of(runs, lambda run: run.test_metrics["accuracy"]),
        validation=spread_of(runs, lambda run: run.best.metrics["accuracy"]),
        best_steps=[(run.best.epoch + 1) * (run.settings.every or 1) for run in runs],
        hours=Spread.of([cost.seconds / 3600 for cost in costs]),
        examples_per_second=statistics.median(paces) if paces else None,
        memory_mib=max(cost.memory_mib for cost in costs),
        parameters=dict(first.attention[0]),
        commands=[str(run.call) for run in runs],
        device=first.device,
        warnings=warnings,
        test_rows=sum(first.test_rows.values()),
        baselines={name: found["accuracy_test"].mean for name, found in guesses.items() if "accuracy_test" in found},
    )


@dataclass(frozen=True)
class _Cost:
    """Of a run, by its log."""

    seconds: float
    """Without what it waited between two starts."""
    examples_per_second: float | None
    """While it learned the classes, without validations."""
    memory_mib: float
    is_whole: bool
    """Whether the seconds and the memory are those of all phases."""


def _cost(run: Run) -> _Cost:
    seconds, paces, memory = _read_times(run.folder)
    pace = statistics.median(paces) * run.settings.batch_size if paces else None
    if not run.origin.checkpoint:
        return _Cost(seconds, pace, memory, is_whole=True)
    # It began with what a run of masked tokens has learned.
    own = run.folder.parent
    for weights in own.with_name(f"{own.name}-tokens").glob(f"*/{run.origin.checkpoint}"):
        if sha256_of(weights) == run.origin.sha256:
            its_seconds, _, its_memory = _read_times(weights.parent)
            return _Cost(seconds + its_seconds, pace, max(memory, its_memory), is_whole=True)
    return _Cost(seconds, pace, memory, is_whole=False)


def _read_times(folder: Path) -> tuple[float, list[float], float]:
    """A run's seconds, its steps a second between each two reports, and its memory at the most, in MiB."""
    records = read_log(folder / "log.jsonl")
    starts = [number for number, record in enumerate(records) if record["type"] == "start"]
    seconds = sum(records[end - 1]["time"] - records[start]["time"] for start, end in pairwise([*starts, len(records)]))
    reports = [record for record in records if record["type"] == "train"]
    # A validation stands between some two reports; the median pair has none.
    paces = [(b["step"] - a["step"]) / (b["time"] - a["time"]) for a, b in pairwise(reports) if b["time"] > a["time"]]
    return seconds, paces, max((report["memory_mib"] for report in reports), default=0.0)


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
    columns = list(arena.columns)
    labels = list(dict.fromkeys(cell.attention for cell in arena.cells))
    by_place = {(cell.attention, cell.column): cell for cell in arena.cells}
    guesses = {column: _guessers(arena.cells, column) for column in columns}
    guessers = dict.fromkeys(name for found in guesses.values() for name in found) or ["majority class"]
    rows = [[name, *(_guess(guesses[column], name) for column in columns)] for name in guessers]
    for label in labels:
        cells = [by_place.get((label, column)) for column in columns]
        rows.append([label, *("" if cell is None else _score(cell) for cell in cells)])
    parts = ["# Long Range Arena", _LEGEND, markdown(["attention", *columns], rows), MARKS, RULES]
    if note := power_note({column: _smallest(arena.cells, column) for column in columns}):
        parts.append(note)
    if any(cell.attention.endswith("]") for cell in arena.cells):
        parts.append(_OTHERWISE)
    parts.append("\n".join(f"- **{name}**: {text}" for name, text in arena.columns.items()))
    said = {f"- {cell.column}: {text}" for cell in arena.cells for text in cell.warnings}
    if said:
        parts += ["What keeps these from comparing with published figures:", "\n".join(sorted(said))]
    if arena.unfinished:
        parts.append("Not finished: " + ", ".join(arena.unfinished) + ".")
    parts += ["## Reported elsewhere", _reported(arena, guesses), "## Each figure", _details(arena)]
    if spans:
        parts += ["## Required attention span", spans]
    commands = dict.fromkeys(command for cell in arena.cells for command in cell.commands)
    parts += ["## Commands", "\n".join(f"    {command}" for command in commands)]
    return "\n\n".join(parts) + "\n"


def _guessers(cells: Sequence[Cell], column: str) -> dict[str, float]:
    """The guessers on a column's data, which are the same for all its runs."""
    return next((cell.baselines for cell in cells if cell.column == column and cell.baselines), {})


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


def _reported(arena: Arena, guesses: Mapping[str, Mapping[str, float]]) -> str:
    """Published figures, and beside them the best guesser on the first column's data of each task."""
    best: list[str] = []
    for task in LRA_TASKS:
        first = next((column for column in arena.columns if column.split()[0] == task), None)
        found = guesses.get(first, {}) if first is not None else {}
        name = max(found, key=found.__getitem__, default=None)
        best.append("" if name is None else f"{100 * found[name]:.1f} ({name})")
    rows = [["best guesser, on the data above", *best]]
    rows += [[f"{name} (paper)", *(f"{value:.2f}" for value in values)] for name, values in PAPER_TABLE_3.items()]
    rows += [[f"{name} (Tay et al.)", *(f"{value:.2f}" for value in values)] for name, values in TAY_TABLE_1.items()]
    return markdown(["", *LRA_TASKS], rows)


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
    rows = [
        [
            cell.column,
            cell.attention,
            ", ".join(map(str, cell.seeds)),
            str(cell.test),
            str(cell.validation),
            ", ".join(f"{step:,}" for step in cell.best_steps),
            f"{cell.hours.mean:.2f}",
            "" if cell.examples_per_second is None else f"{cell.examples_per_second:.1f}",
            f"{cell.memory_mib:,.0f}",
        ]
        for cell in arena.cells
    ]
    return markdown(header, rows)


def draw(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Score over speed, the size of a bubble by its memory (Tay et al. 2021, Figure 3).

    Args:
        cells: whose speed is known.

    Raises:
        UserError: the picture cannot be written.
    """
    # Importing it takes a second.
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    figure_ = Figure(figsize=(10, 5.5), layout="constrained")
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
        axes.annotate(name, (0.01, 100 * value), xycoords=("axes fraction", "data"), fontsize=8)
    axes.set_xlabel(f"examples a second while training ({cells[0].device}); size: memory")
    axes.set_ylabel("test accuracy, %")
    axes.set_title(title.partition(";")[0], fontsize=9, wrap=True)
    axes.margins(0.15)
    axes.grid(alpha=0.25)
    write_figure(path, figure_, dpi=120)
