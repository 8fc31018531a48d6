"""Finished fine-tuning runs beside the paper's Table 2."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.report.finetuning import Column, Finished, Repeats, collect
from nystromformer.runs.baselines import Baselines
from nystromformer.runs.figures import MARKS, SmallestDifference, Spread, power_note, smallest_difference
from nystromformer.runs.record import tested_weights
from nystromformer.tables import markdown

_OF_PAPER = " (paper)"
_GUESSERS = ("majority class", "tf-idf")
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
    "In percent: mean ± sample standard deviation over the seeds, each run at its best epoch. If there are several "
    "settings, the table shows those with the most complete data, then the most training rows, then the most finished "
    "seeds, then the highest mean of the main metric on the validation data."
)
_PROTOCOL = (
    "The paper: batch 32, learning rate 3e-5, 4 epochs (MRPC: searched over batch 8, 16, 32 and 2e-5 to 5e-5); it "
    "gives F1 alone for MRPC and QQP."
)

_DETAILS = ("task", "training rows", "length", "seeds", "batch", "learning rate", "epochs", "best", "last", "exact")


@dataclass(frozen=True)
class Table:
    """What is shown, in whatever form."""

    header: list[str]
    """The first column names the rows."""
    rows: list[list[str]]
    """Cells are empty where there is nothing."""
    below: list[str]
    """Paragraphs."""

    def __str__(self) -> str:
        return "\n\n".join([markdown(self.header, self.rows), *self.below])


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
    write_text(out, _markdown(table, finished))
    write_json(out.with_suffix(".json"), _plain(table, finished))
    return table


def table2(finished: Finished) -> Table:
    """The paper's figures, ours, and those of the guessers, for the tasks that there are runs of."""
    figures = _figures(finished)
    columns = list(dict.fromkeys(runs.column for runs in figures))
    # The paper knows nothing of tables that people bring.
    compared = not all(column.task.tells_apart for column in columns)
    paper = PAPER if compared else {}
    rows = [[f"{name}{_OF_PAPER}", *(_paper_cell(values, each) for each in columns)] for name, values in paper.items()]
    for model in finished.models:
        rows.append([model.label, *(_cell(model.tasks[each]) if each in model.tasks else "" for each in columns)])
    rows += _guesser_rows(figures, [model.label for model in finished.models])
    below = [f"{_LEGEND} {_which_data(figures)}"]
    below += [_PROTOCOL] if compared else []
    measured = [runs.measured.baselines for runs in figures if runs.measured is not None]
    below += [MARKS] if measured else []
    if note := power_note(_smallest(figures)):
        below.append(note)
    return Table(["model", *(column.heading for column in columns)], rows, below + _notes(figures, finished.unfinished))


def _figures(finished: Finished) -> list[Repeats]:
    """Column by column, the paper's tasks first."""
    of_paper = list(dict.fromkeys(task for figures in PAPER.values() for task in figures))

    def place(runs: Repeats) -> tuple[int, str]:
        key = runs.column.key
        return of_paper.index(key) if key in of_paper else len(of_paper), key

    return sorted((runs for model in finished.models for runs in model.tasks.values()), key=place)


def _by_column(figures: Sequence[Repeats]) -> dict[Column, list[Repeats]]:
    columns: dict[Column, list[Repeats]] = {}
    for runs in figures:
        columns.setdefault(runs.column, []).append(runs)
    return columns


def _which_data(figures: Sequence[Repeats]) -> str:
    """Which columns, and with them their baselines, are of test data."""
    columns = _by_column(figures)
    tested = [column.heading for column, each in columns.items() if all(one.on_test or one.is_untested for one in each)]
    if not tested:
        return "Columns show validation data."
    data = "test data, by which nothing was chosen"
    if len(tested) == len(columns):
        return f"Columns show {data}."
    return f"{', '.join(tested)}: {data}; the other columns: validation data."


def _smallest(figures: Sequence[Repeats]) -> dict[str, SmallestDifference | None]:
    """Of each metric of each column, over the models whose figures are of as many examples."""
    found: dict[str, SmallestDifference | None] = {}
    for column, several_runs in _by_column(figures).items():
        alike: dict[tuple[str, int], list[tuple[Spread, int]]] = {}
        for runs in several_runs:
            for name, spread in ({} if runs.is_untested else runs.shown).items():
                alike.setdefault((name, runs.examples(name)), []).append((spread, len(runs.on_test or runs.runs)))
        has_several = len({name for name, _ in alike}) > 1
        for (name, rows), spreads in alike.items():
            found[f"{column.name} {name}" if has_several else column.name] = smallest_difference(name, spreads, rows)
    return found


def _paper_cell(values: dict[str, tuple[float, ...]], column: Column) -> str:
    shown = list(map(str, values.get(column.key, ())))
    return " / ".join([*shown, "–"] if shown and "F1" in column.measures else shown)


def _cell(runs: Repeats) -> str:
    partial = " †" if runs.first.every_warning else ""
    if runs.is_untested:
        return f"not tested{partial}"
    text = " / ".join(f"{spread} {runs.mark(name)}".rstrip() for name, spread in runs.shown.items())
    if 0 < len(runs.on_test) < len(runs.runs):
        text += f" ({len(runs.on_test)} of {len(runs.runs)} seeds)"
    return text + partial


def _guesser_rows(figures: Sequence[Repeats], order: Sequence[str]) -> list[list[str]]:
    """A row for each guesser; where a task's runs are on different data, one for each, which says whose data it is.

    Args:
        order: the models' labels.
    """
    rows = []
    for name in dict.fromkeys(name for runs in figures for name in runs.baselines) or _GUESSERS:
        cells = [_guesses(name, each) for each in _by_column(figures).values()]
        owners = {labels for each in cells for labels, cell in each.items() if cell} or {()}
        for labels in sorted(owners, key=lambda labels: [order.index(label) for label in labels]):
            label = f"{name} (data of {' and '.join(labels)})" if labels else name
            rows.append([label, *(each.get(labels, "") for each in cells)])
    return rows


def _guesses(name: str, figures: Sequence[Repeats]) -> dict[tuple[str, ...], str]:
    """A guesser's cell for each data that a column's runs are on, by the labels of the models whose data it is; by none
    of them where it is that of all.
    """
    figures = [runs for runs in figures if not runs.is_untested]
    measured = [runs for runs in figures if runs.measured is not None]
    if not measured:
        return {(): "not measured" if any(runs.lacks_baselines for runs in figures) else ""}
    owners: dict[tuple[str, bool], list[str]] = {}
    cells = {}
    for runs in measured:
        # What makes baselines the same: the data, and whether those for the test or the validation are shown.
        data = runs.first.data, bool(runs.on_test)
        owners.setdefault(data, []).append(runs.label)
        cells[data] = " / ".join(map(str, runs.baselines.get(name, {}).values()))
    return {() if len(owners[data]) == len(figures) else tuple(owners[data]): cell for data, cell in cells.items()}


def _notes(figures: Sequence[Repeats], unfinished: Sequence[str]) -> list[str]:
    """What limits the figures, each once."""
    columns = _by_column(figures)

    def those(says: Callable[[Repeats], Iterable[str]]) -> list[str]:
        """What is said of some figures, with the task, and the models where it does not hold of all of the task."""
        said: dict[tuple[Column, str], list[str]] = {}
        for runs in figures:
            for text in says(runs):
                said.setdefault((runs.column, text), []).append(runs.label)
        return [
            f"{column.name}{'' if len(labels) == len(columns[column]) else ' of ' + ' and '.join(labels)}: {text}"
            for (column, text), labels in said.items()
        ]

    notes = [f"† {text}" for text in those(lambda runs: runs.first.every_warning)]
    notes += those(_fewer_seeds) + those(_other_weights)
    unmeasured = dict.fromkeys(runs.column.name for runs in figures if runs.lacks_baselines)
    if unmeasured:
        notes.append(
            f"No baselines of the same data for {', '.join(unmeasured)}: the runs' commands with --baselines measure "
            "them and train nothing again."
        )
    if unfinished:
        are = "1 run is" if len(unfinished) == 1 else f"{len(unfinished)} runs are"
        notes.append(f"{are} not finished: {', '.join(unfinished)}")
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
    parts = [
        "# Fine-tuning" + (" beside the paper's Table 2" if table.rows[0][0].endswith(_OF_PAPER) else ""),
        str(table),
        "## How each figure was reached",
        "Best and last: the best and the last epoch on the validation data, in percent. Exact: the share of validation "
        "rows that are short enough for exact attention in every layer.",
    ]
    figures = _figures(finished)
    for model in finished.models:
        own = [runs for runs in figures if runs in model.tasks.values()]
        commands, origin = "\n".join(runs.command for runs in own), model.origin
        parts += [
            f"### {model.label}",
            f"From {origin}{f', step {origin.step}' if origin.checkpoint else ''}; {model.attention}.",
            markdown(_DETAILS, map(_details, own)),
            f"```sh\n{commands}\n```",
        ]
    if measured := _measured(finished):
        parts += ["### Baselines", *(_of_baselines(*each) for each in measured)]
    return "\n\n".join(parts) + "\n"


def _details(runs: Repeats) -> list[str]:
    first = runs.first
    return [
        runs.column.name + (" †" if first.every_warning else ""),
        f"{first.rows['train']:,}",
        str(first.length),
        ",".join(map(str, runs.seeds)),
        str(first.settings.batch_size),
        f"{first.settings.learning_rate:g}",
        str(first.settings.epochs),
        " / ".join(str(runs.best(name)) for name in runs.metrics),
        " / ".join(str(runs.last(name)) for name in runs.metrics),
        f"{100 * first.exact_share['validation']:.0f} %",
    ]


def _measured(finished: Finished) -> list[tuple[Column, Baselines]]:
    """The baselines in the table, each once."""
    measured: list[tuple[Column, Baselines]] = []
    for runs in _figures(finished):
        if runs.measured is not None and (runs.column, runs.measured) not in measured:
            measured.append((runs.column, runs.measured))
    return measured


def _of_baselines(column: Column, measured: Baselines) -> str:
    rows = ", ".join(f"{count:,} rows of {name}" for name, count in measured.rows.items())
    facts = ", ".join(f"{key} {value}" for key, value in measured.machine.items())
    return f"{column.name}: {rows}; {facts}\n\n```sh\n{measured.call}\n```"


def _plain(table: Table, finished: Finished) -> dict[str, Any]:
    """The table, and the same figures as plain data: fractions, but the paper's in percent."""
    rows = []
    for model in finished.models:
        facts = {"name": model.name, "origin": asdict(model.origin), "attention": model.attention}
        rows.append(facts | {"tasks": {column.key: _plain_runs(runs) for column, runs in model.tasks.items()}})
    baselines = [{"task": column.key, **asdict(measured)} for column, measured in _measured(finished)]
    return {
        "table": {"header": table.header, "rows": table.rows},
        "paper_percent": PAPER,
        "rows": rows,
        "baselines": baselines,
        "unfinished": finished.unfinished,
    }


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
