"""Finished fine-tuning runs beside the paper's Table 2."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files import NewFile, write_json
from nystromformer.report.finetuning import Column, FinetunedModel, Finished, Repeats, collect
from nystromformer.runs.baselines import Baselines
from nystromformer.runs.figures import MARKS, SmallestDifference, Spread, power_note, smallest_difference
from nystromformer.runs.record import tested_weights
from nystromformer.tables import LEAST_WIDTH, apart, fitted, markdown
from nystromformer.tables import Column as TableColumn
from nystromformer.tasks.declaration import task_of
from nystromformer.tasks.finetuning.tables import RESAMPLED, is_resampled

_OF_PAPER = " (paper)"
_GUESSERS = ("majority class", "bag of words")
"""What there would be a row of, where no baselines were measured."""

# Table 2 of the paper (Xiong et al. 2021, arXiv 2102.03902), in percent: F1 for MRPC and QQP, accuracy for the rest,
# MNLI matched and mismatched.
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "BERT-base": {
        "glue/SST-2": (90.0,),
        "glue/MRPC": (88.4,),
        "glue/QNLI": (90.3,),
        "glue/QQP": (87.3,),
        "glue/MNLI": (82.4, 82.4),
        "imdb": (93.3,),
    },
    "Nyströmformer": {
        "glue/SST-2": (91.4,),
        "glue/MRPC": (88.1,),
        "glue/QNLI": (88.7,),
        "glue/QQP": (86.3,),
        "glue/MNLI": (80.9, 82.2),
        "imdb": (93.2,),
        "imdb (n=1024)": (93.0,),
    },
}
_LEGEND = (
    "In percent: mean ± sample standard deviation over the seeds, each run at its best epoch. Of several settings "
    "those on the most complete data, then on the most training rows, then with the most finished seeds, then those "
    "with the highest mean of the main metric on the validation data."
)
_PROTOCOL = (
    "The paper: batch 32, learning rate 3e-5, 4 epochs (MRPC: searched over batch 8, 16, 32 and 2e-5 to 5e-5); it "
    "gives F1 alone for MRPC and QQP."
)

_DETAILS = ("task", "training rows", "length", "seeds", "batch", "learning rate", "epochs", "best", "last", "exact")


@dataclass(frozen=True)
class Table:
    """What is shown, in whatever form."""

    tasks: list[str]
    """The columns' headings."""
    rows: list[tuple[str, list[str]]]
    """What it is, and its cells, empty where there is nothing."""
    below: list[str]
    """Paragraphs."""


def write_table2(folders: Sequence[Path], out: Path) -> Table:
    """Write the table as Markdown with how each figure was reached, and the same figures as JSON beside it.

    Args:
        folders: of experiments.
        out: the Markdown's file, NAME.md.

    Raises:
        UserError: another ending, a file that cannot be written, or as `collect`.
    """
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")
    finished = collect(folders)
    table = table2(finished)
    with NewFile(out) as file:
        file.write(_markdown(table, finished).encode())
    write_json(out.with_suffix(".json"), _plain(finished))
    return table


def for_terminal(table: Table, width: int | None) -> str:
    """The table and what stands below it, in lines of at most so many characters; None: however wide they are."""
    columns = [TableColumn(heading, is_text=True) for heading in ("", *table.tasks)]
    lines = fitted(columns, [[label, *cells] for label, cells in table.rows], width)
    if width is None:
        below = [[text] for text in table.below]
    else:
        below = [textwrap.wrap(text, max(width, LEAST_WIDTH)) for text in table.below]
    return "\n".join(apart([lines, *below]))


def table2(finished: Finished) -> Table:
    """The paper's figures, ours, and those of the guessers, for the tasks that there are runs of."""
    tasks = _tasks(finished)
    labels = _labels(finished.models)
    # The paper knows nothing of tables that people bring.
    compared = not all(column.task.tells_apart for column in tasks)
    paper = PAPER if compared else {}
    rows = [(f"{name}{_OF_PAPER}", [_paper_cell(values, task) for task in tasks]) for name, values in paper.items()]
    for model, label in zip(finished.models, labels, strict=True):
        rows.append((label, [_cell(model.tasks[task]) if task in model.tasks else "" for task in tasks]))
    rows += _guesser_rows(finished, tasks, labels)
    below = [f"{_LEGEND} {_which_data(finished, tasks)}"]
    below += [_PROTOCOL] if compared else []
    measured = [runs.measured.baselines for _, _, runs in _cells(finished, labels) if runs.measured is not None]
    below += [MARKS] if measured else []
    below += [RESAMPLED] if any(map(is_resampled, measured)) else []
    if note := power_note(_smallest(finished, tasks)):
        below.append(note)
    return Table([column.heading for column in tasks], rows, below + _notes(finished, labels))


def _which_data(finished: Finished, tasks: Sequence[Column]) -> str:
    """Which columns, and with them their baselines, are of test data."""
    of_test = {task: [runs for model in finished.models if (runs := model.tasks.get(task))] for task in tasks}
    tested = [task.heading for task, every in of_test.items() if all(runs.on_test or _untested(runs) for runs in every)]
    if not tested:
        return "Columns show validation data."
    data = "test data, by which nothing was chosen"
    if len(tested) == len(tasks):
        return f"Columns show {data}."
    return f"{', '.join(tested)}: {data}; the other columns: validation data."


def _smallest(finished: Finished, tasks: Sequence[Column]) -> dict[str, SmallestDifference | None]:
    """Of each metric of each column, over the models whose figures are of as many examples."""
    found: dict[str, SmallestDifference | None] = {}
    for task in tasks:
        figures: dict[tuple[str, int], list[tuple[Spread, int]]] = {}
        for model in finished.models:
            if task in model.tasks and not _untested(runs := model.tasks[task]):
                for name, spread in runs.shown.items():
                    seeds = len(runs.on_test or runs.runs)
                    figures.setdefault((name, runs.examples(name)), []).append((spread, seeds))
        for (name, rows), column in figures.items():
            several = len({metric for metric, _ in figures}) > 1
            found[f"{task.name} {name}" if several else task.name] = smallest_difference(name, column, rows)
    return found


def _tasks(finished: Finished) -> list[Column]:
    """Those that there are runs of, the paper's first."""
    of_paper = list(dict.fromkeys(task for figures in PAPER.values() for task in figures))
    columns = {column for model in finished.models for column in model.tasks}
    return sorted(columns, key=lambda each: (of_paper.index(each.key) if each.key in of_paper else 99, each.key))


def _cells(finished: Finished, labels: Sequence[str]) -> list[tuple[str, Column, Repeats]]:
    """Label of the model, task and runs of each figure, column by column."""
    labelled = list(zip(labels, finished.models, strict=True))
    return [
        (label, task, model.tasks[task])
        for task in _tasks(finished)
        for label, model in labelled
        if task in model.tasks
    ]


def _labels(models: Sequence[FinetunedModel]) -> list[str]:
    """The experiments' names, and what tells models of one experiment apart."""
    labels = []
    for model in models:
        alike = [other for other in models if other.name == model.name]
        parts = [model.name]
        parts += [str(model.origin)] if len({other.origin for other in alike}) > 1 else []
        parts += [model.attention] if len({other.attention for other in alike}) > 1 else []
        labels.append(", ".join(parts))
    return labels


def _paper_cell(values: dict[str, tuple[float, ...]], column: Column) -> str:
    shown = list(map(str, values.get(column.key, ())))
    return " / ".join([*shown, "–"] if shown and "F1" in column.measures else shown)


def _cell(runs: Repeats) -> str:
    partial = " †" if runs.first.every_warning else ""
    if _untested(runs):
        return f"not tested{partial}"
    text = " / ".join(f"{spread} {runs.mark(name)}".rstrip() for name, spread in runs.shown.items())
    if 0 < len(runs.on_test) < len(runs.runs):
        text += f" ({len(runs.on_test)} of {len(runs.runs)} seeds)"
    return text + partial


def _untested(runs: Repeats) -> bool:
    """Whether it is a task that is always measured on test data, as others are where the task says so, and was not."""
    return task_of(runs.first.kind).on_test and not runs.on_test


def _has_baselines(runs: Repeats) -> bool:
    return task_of(runs.first.kind).has_baselines


def _guesser_rows(finished: Finished, tasks: Sequence[Column], labels: Sequence[str]) -> list[tuple[str, list[str]]]:
    """A row for each guesser; where a task's runs are on different data, one for each, which says whose data it is."""
    figures = _cells(finished, labels)
    compared = {
        task: [(label, runs) for label, each, runs in figures if each == task and not _untested(runs)] for task in tasks
    }
    rows = []
    for name in dict.fromkeys(name for _, _, runs in figures for name in runs.baselines) or _GUESSERS:
        cells = {task: _guesses(name, models) for task, models in compared.items()}
        owners = {models for each in cells.values() for models, cell in each.items() if cell} or {()}
        for models in sorted(owners, key=lambda models: [labels.index(label) for label in models]):
            label = f"{name} (data of {' and '.join(models)})" if models else name
            rows.append((label, [each.get(models, "") for each in cells.values()]))
    return rows


def _guesses(name: str, models: Sequence[tuple[str, Repeats]]) -> dict[tuple[str, ...], str]:
    """A guesser's cell for each data that a task's runs are on, by the models whose data it is; by none of them where
    it is that of all.
    """
    measured = [(label, runs) for label, runs in models if runs.measured is not None]
    if not measured:
        unmeasured = any(_has_baselines(runs) for _, runs in models)
        return {(): "not measured" if unmeasured else ""}
    cells = {_data(runs): " / ".join(map(str, runs.baselines.get(name, {}).values())) for _, runs in measured}
    owners = {data: tuple(label for label, runs in measured if _data(runs) == data) for data in cells}
    return {() if len(owners[data]) == len(models) else owners[data]: cell for data, cell in cells.items()}


def _data(runs: Repeats) -> tuple[str, bool]:
    """What makes baselines the same: the data, and whether those for the test or the validation are shown."""
    return runs.first.data, bool(runs.on_test)


def _notes(finished: Finished, labels: Sequence[str]) -> list[str]:
    """What limits the figures, each once."""
    figures = _cells(finished, labels)

    def those(says: Callable[[Repeats], Iterable[str]]) -> list[str]:
        """What is said of some figures, with the task, and the models where it does not hold of all of the task."""
        said: dict[tuple[Column, str], list[str]] = {}
        for label, task, runs in figures:
            for text in says(runs):
                said.setdefault((task, text), []).append(label)
        counts = [task for _, task, _ in figures]
        return [
            f"{task.name}{'' if len(models) == counts.count(task) else ' of ' + ' and '.join(models)}: {text}"
            for (task, text), models in said.items()
        ]

    notes = [f"† {text}" for text in those(lambda runs: runs.first.every_warning)]
    notes += those(_fewer_seeds) + those(_other_weights)
    unmeasured = dict.fromkeys(task.name for _, task, runs in figures if runs.measured is None and _has_baselines(runs))
    if unmeasured:
        notes.append(
            f"No baselines of the same data for {', '.join(unmeasured)}: the runs' commands with --baselines measure "
            "them and train nothing again."
        )
    if finished.unfinished:
        count = len(finished.unfinished)
        notes.append(f"{count} {'run is' if count == 1 else 'runs are'} not finished: {', '.join(finished.unfinished)}")
    return notes


def _fewer_seeds(runs: Repeats) -> list[str]:
    fewer = sum(count < len(runs.runs) for count in runs.others)
    return (
        [f"of {len(runs.others) + 1} settings, {fewer} with fewer finished seeds than the one shown"] if fewer else []
    )


def _other_weights(runs: Repeats) -> list[str]:
    weights = tested_weights(runs.on_test)
    return [] if weights == "the best epoch's" else [f"tested with {weights} weights"]


def _markdown(table: Table, finished: Finished) -> str:
    """The table, and how each figure was reached."""
    labels = _labels(finished.models)
    parts = [
        "# Fine-tuning" + (" beside the paper's Table 2" if table.rows[0][0].endswith(_OF_PAPER) else ""),
        markdown(["model", *table.tasks], [[label, *cells] for label, cells in table.rows]),
        *table.below,
        "## How each figure was reached",
        "Best and last: of the epochs on the validation data, in percent. Exact: validation rows that are short enough "
        "for exact attention in every layer.",
    ]
    for model, label in zip(finished.models, labels, strict=True):
        figures = [(task, model.tasks[task]) for task in _tasks(finished) if task in model.tasks]
        commands, origin = "\n".join(runs.command for _, runs in figures), model.origin
        parts += [
            f"### {label}",
            f"From {model.origin}{f', step {origin.step}' if origin.checkpoint else ''}; {model.attention}.",
            markdown(_DETAILS, [_detail(*figure) for figure in figures]),
            f"```sh\n{commands}\n```",
        ]
    measured = _measured(finished)
    if measured:
        parts += ["### Baselines", *(_of_baselines(*each) for each in measured)]
    return "\n\n".join(parts) + "\n"


def _detail(task: Column, runs: Repeats) -> list[str]:
    settings = runs.first.settings
    return [
        task.name + (" †" if runs.first.every_warning else ""),
        f"{runs.first.rows['train']:,}",
        str(runs.first.length),
        ",".join(map(str, runs.seeds)),
        str(settings.batch_size),
        f"{settings.learning_rate:g}",
        str(settings.epochs),
        " / ".join(str(runs.best(name)) for name in runs.metrics),
        " / ".join(str(runs.last(name)) for name in runs.metrics),
        f"{100 * runs.first.exact_share['validation']:.0f} %",
    ]


def _measured(finished: Finished) -> list[tuple[Column, Baselines]]:
    """The baselines in the table, each once."""
    measured: list[tuple[Column, Baselines]] = []
    for _, task, runs in _cells(finished, _labels(finished.models)):
        if runs.measured is not None and (task, runs.measured) not in measured:
            measured.append((task, runs.measured))
    return measured


def _of_baselines(task: Column, measured: Baselines) -> str:
    rows = ", ".join(f"{count:,} rows of {name}" for name, count in measured.rows.items())
    facts = ", ".join(f"{key} {value}" for key, value in measured.machine.items())
    seeds = ",".join(map(str, measured.seeds))
    return f"{task.name}: {rows}; seeds {seeds}; {facts}\n\n```sh\n{measured.call}\n```"


def _plain(finished: Finished) -> dict[str, Any]:
    """The same figures as plain data: fractions, but the paper's in percent."""
    rows = []
    for model in finished.models:
        facts = {"name": model.name, "origin": asdict(model.origin), "attention": model.attention}
        rows.append(facts | {"tasks": {task.key: _plain_runs(runs) for task, runs in model.tasks.items()}})
    baselines = [{"task": task.key, **asdict(measured)} for task, measured in _measured(finished)]
    return {"paper_percent": PAPER, "rows": rows, "baselines": baselines, "unfinished": finished.unfinished}


def _plain_runs(runs: Repeats) -> dict[str, Any]:
    return {
        "main_metric": runs.first.main_metric,
        "best": {name: asdict(runs.best(name)) for name in runs.metrics},
        "last": {name: asdict(runs.last(name)) for name in runs.metrics},
        "test": {name: asdict(spread) for name, spread in runs.tested.items()},
        "marks": {name: runs.mark(name) for name in runs.shown},
        "settings": {key: value for key, value in asdict(runs.first.settings).items() if key != "seed"},
        "seeds": runs.seeds,
        "best_epochs": [run.best.epoch for run in runs.runs],
        "tested_epochs": [run.tested_epoch for run in runs.on_test],
        "attention": runs.first.attention,
        "data": runs.first.data,
        "rows": runs.first.rows,
        "test_rows": runs.on_test[0].test_rows if runs.on_test else {},
        "exact_share": runs.first.exact_share,
        "warnings": runs.first.every_warning,
        "command": runs.command,
        "folders": [str(run.folder) for run in runs.runs],
    }
