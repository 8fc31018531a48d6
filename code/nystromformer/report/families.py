"""Families of finished runs, which differ in their seeds alone: what the tables of all tasks are made of."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.runs.figures import SmallestDifference, Spread, power_note, rows_behind, smallest_difference
from nystromformer.runs.record import Run, find_runs, spread_of
from nystromformer.tasks.declaration import Task, task_of
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.training.log import read_log


@dataclass(frozen=True)
class Family:
    """Runs of an experiment that differ in their seeds alone, by seed."""

    experiment: str
    """Its name, or its path where several have one name."""
    runs: tuple[Run, ...]
    measured: Mapping[str, Mapping[str, Spread]]
    """The baselines on the same data, by their name and the metric's; none where nobody measured them."""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def task(self) -> Task:
        return task_of(self.first.kind)

    @property
    def seeds(self) -> list[int]:
        return [run.settings.seed for run in self.runs]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main metric, the same on the other validation split where there is one, and accuracy beside F1."""
        names = [self.first.main_metric, f"{self.first.main_metric}_mismatched"]
        names += ["accuracy"] if self.first.main_metric == "f1" else []
        return tuple(name for name in names if all(name in run.best.metrics for run in self.runs))

    def best(self, name: str) -> Spread:
        return spread_of(self.runs, lambda run: run.best.metrics[name])

    def last(self, name: str) -> Spread:
        return spread_of(self.runs, lambda run: run.last.metrics[name])

    @cached_property
    def on_test(self) -> tuple[Run, ...]:
        """The runs that predicted test data with labels."""
        return tuple(run for run in self.runs if self.first.main_metric in run.test_metrics)

    @property
    def shown(self) -> dict[str, Spread]:
        """What stands in a table: of test data with labels where there are some, else of the best epochs."""
        name = self.first.main_metric
        if self.on_test:
            return {name: spread_of(self.on_test, lambda run: run.test_metrics[name])}
        return {name: self.best(name) for name in self.metrics}

    def examples(self, name: str) -> int:
        """That a shown figure is of."""
        return self.on_test[0].tested_rows(name) if self.on_test else rows_behind(name, self.first.rows)

    @property
    def baselines(self) -> dict[str, dict[str, Spread]]:
        """The guessers' figures for the shown ones, on the same rows."""
        ending = "_test" if self.on_test else ""
        return {
            guesser: {name: figures[name + ending] for name in self.shown if name + ending in figures}
            for guesser, figures in self.measured.items()
        }

    @property
    def is_untested(self) -> bool:
        """Whether the task is one that is measured on test data, and it was not."""
        return self.task.on_test and not self.on_test

    @property
    def cell(self) -> str:
        """The shown figures."""
        partial = " †" if self.first.every_warning else ""
        if self.is_untested:
            return f"not tested{partial}"
        text = " / ".join(map(str, self.shown.values()))
        if 0 < len(self.on_test) < len(self.runs):
            text += f" ({len(self.on_test)} of {len(self.runs)} seeds)"
        return text + partial

    def costs(self) -> dict[str, Any]:
        """By the logs: `seconds` of each run, without what it waited between two starts; `examples_per_second` without
        validations, None of too short a run; `memory_mib` at the most.
        """
        logs = [pd.DataFrame(read_log(run.folder / "log.jsonl")) for run in self.runs]
        times = [log.groupby(log.type.eq("start").cumsum()).time for log in logs]
        reports = [log[log.type == "train"].reindex(columns=["step", "time", "memory_mib"]) for log in logs]
        pairs = [report.diff().query("time > 0") for report in reports]
        # A validation stands between some two reports; the median pair has none.
        paces = [float((each.step / each.time).median()) for each in pairs if len(each)]
        return {
            "seconds": [float((each.last() - each.first()).sum()) for each in times],
            "examples_per_second": statistics.median(paces) * self.first.settings.batch_size if paces else None,
            "memory_mib": max((float(report.memory_mib.max()) for report in reports if len(report)), default=0.0),
        }

    @property
    def record(self) -> dict[str, Any]:
        """What it is and what it reached, plain data: fractions."""
        first = self.first
        return {
            "experiment": self.experiment,
            "origin": asdict(first.origin),
            "attention": self.first.attention_text,
            "settings": {key: value for key, value in asdict(first.settings).items() if key != "seed"},
            "seeds": self.seeds,
            "shown": {name: asdict(spread) for name, spread in self.shown.items()},
            "best": {name: asdict(self.best(name)) for name in self.metrics},
            "last": {name: asdict(self.last(name)) for name in self.metrics},
            "best_epochs": [run.best.epoch for run in self.runs],
            "data": first.data,
            "rows": {**first.rows, **first.test_rows},
            "warnings": list(first.every_warning),
            "device": first.device,
            "commands": list(dict.fromkeys(run.command for run in self.runs)),
            "baselines": {
                guesser: {name: asdict(spread) for name, spread in figures.items()}
                for guesser, figures in self.measured.items()
            },
        }


Columns = Mapping[str, Mapping[str, Family]]
"""What a table shows, by the heading of its column and the name of its row."""


def rows_of(columns: Columns) -> tuple[list[list[str]], list[list[str]]]:
    """The rows of models, and those of guessers on the same data."""
    names = dict.fromkeys(name for own in columns.values() for name in own)
    models = [[name, *(own[name].cell if name in own else "" for own in columns.values())] for name in names]
    guessers = [
        next((each.baselines for each in own.values() if each.measured and not each.is_untested), {})
        for own in columns.values()
    ]
    names = dict.fromkeys(name for found in guessers for name, figures in found.items() if figures)
    cells = ([" / ".join(map(str, found.get(name, {}).values())) for found in guessers] for name in names)
    return models, [[name, *row] for name, row in zip(names, cells, strict=True)]


def say_power(columns: Columns) -> str:
    """The smallest differences that could have been shown: of each metric of each column, over the models whose figures
    are of as many examples.
    """
    found: dict[str, SmallestDifference | None] = {}
    for heading, own in columns.items():
        alike: dict[tuple[str, int], list[tuple[Spread, int]]] = {}
        for family in own.values():
            for name, spread in family.shown.items() if not family.is_untested else ():
                seeds = len(family.on_test or family.runs)
                alike.setdefault((name, family.examples(name)), []).append((spread, seeds))
        has_several = len({name for name, _ in alike}) > 1
        for (name, rows), spreads in alike.items():
            found[f"{heading} {name}" if has_several else heading] = smallest_difference(name, spreads, rows)
    return power_note(found)


def read_families(
    folders: Sequence[Path], table: str, example: str, wanted: Callable[[Run], bool] = lambda run: True
) -> list[Family]:
    """The families of some experiment folders that a report shows.

    Args:
        table: as of `Task.table`.
        example: a command that would make one.
    """
    different: dict[Path, Path] = {}
    for folder in folders:
        different.setdefault(folder.resolve(), folder)
    names = Counter(path.name for path in different)
    together: dict[tuple[str, str], list[Run]] = {}
    for path, folder in different.items():
        name = path.name if names[path.name] == 1 else str(folder)
        every = find_runs(open_experiment(folder).checkpoints)
        runs = [run for run in every if task_of(run.kind).table == table and wanted(run)]
        if not runs:
            raise UserError(f"{folder}: expected finished runs, found none; run one first, such as python {example}")
        for run in runs:
            # The rows of Table 2 are experiments.
            together.setdefault((name if table == "table2" else "", run.family), []).append(run)
    if not together:
        raise UserError(f"expected finished runs, found no folder; run one first, such as python {example}")
    measured = {_data_of(runs): run.baselines for runs in together.values() for run in runs if run.baselines}
    return [
        Family(name, tuple(sorted(runs, key=lambda run: run.settings.seed)), measured.get(_data_of(runs), {}))
        for (name, _), runs in together.items()
    ]


def _data_of(runs: Sequence[Run]) -> tuple[str, str, str | None]:
    """The task of some runs, their data, and the labelled test data that they predicted."""
    tested = (run.tested.data for run in runs if run.tested and run.main_metric in run.test_metrics)
    return runs[0].task, runs[0].data, next(tested, None)


def commands_of(families: Iterable[Family]) -> list[str]:
    """What was typed for these runs."""
    return list(dict.fromkeys(run.command for family in families for run in family.runs))


def warnings_of(families: Iterable[Family]) -> list[str]:
    """What keeps their figures from comparing with others, each once."""
    return list(dict.fromkeys(text for family in families for text in family.first.every_warning))


def write_report(out: Path, text: str, data: Mapping[str, Any]) -> None:
    """Markdown, and its figures as JSON beside it."""
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")
    write_text(out, text)
    write_json(out.with_suffix(".json"), data)
