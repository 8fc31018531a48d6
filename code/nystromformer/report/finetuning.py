"""The finished fine-tuning runs of experiments; those that differ in their seeds alone together."""

import json
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from nystromformer.config.attention_text import attention_text
from nystromformer.errors import UserError
from nystromformer.runs.baselines import BASELINES, Baselines, find_baselines, read_baselines
from nystromformer.runs.figures import Mark, Spread, mark, rows_behind
from nystromformer.runs.record import Origin, Run, find_runs, find_unfinished, spread_of
from nystromformer.tasks.declaration import Task, task_of
from nystromformer.tasks.experiment.folder import read_experiment
from nystromformer.training.checkpoint import stated_checksum
from nystromformer.training.log import read_log


@dataclass(frozen=True)
class Column:
    """What figures stand in one column of a table."""

    key: str
    """The runs' task, and what tells them from others of the same."""
    name: str
    """For people."""
    measures: str
    """What the figures are, where the name does not say it."""
    task: Task

    @property
    def heading(self) -> str:
        return f"{self.name} {self.measures}".rstrip()


@dataclass(frozen=True)
class Repeats:
    """A model's runs of a column with the best settings; they differ in their seeds alone."""

    label: str
    """Of the model."""
    column: Column
    runs: tuple[Run, ...]
    others: tuple[int, ...] = ()
    """Finished seeds of each other settings on the same data."""
    measured: Baselines | None = None
    """The baselines on the same data, where somebody measured them."""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def is_untested(self) -> bool:
        """Whether the task is one that is measured on test data, and it was not."""
        return self.column.task.on_test and not self.on_test

    @property
    def lacks_baselines(self) -> bool:
        """Whether nobody measured those that the task has."""
        return self.column.task.has_baselines and self.measured is None

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

    @property
    def on_test(self) -> tuple[Run, ...]:
        """The runs that predicted test data with labels."""
        return tuple(run for run in self.runs if self.first.main_metric in run.test_metrics)

    @property
    def tested(self) -> dict[str, Spread]:
        """The main metric on test data with labels, of the runs that have it."""
        name, runs = self.first.main_metric, self.on_test
        return {name: spread_of(runs, lambda run: run.test_metrics[name])} if runs else {}

    @property
    def shown(self) -> dict[str, Spread]:
        """What stands in the table: of test data with labels where there are some, else of the best epochs."""
        return self.tested or {name: self.best(name) for name in self.metrics}

    def mark(self, name: str) -> Mark:
        """What stands beside a shown figure: whether it is clear of the baselines."""
        guesses = (figures[name] for figures in self.baselines.values() if name in figures)
        return mark(name, self.shown[name], guesses, self.examples(name))

    def examples(self, name: str) -> int:
        """That a shown figure is of."""
        run = self.on_test[0] if self.on_test else self.first
        return run.tested_rows(name) if self.on_test else rows_behind(name, run.rows)

    @property
    def baselines(self) -> dict[str, dict[str, Spread]]:
        """The guessers' figures for the shown ones, on the same rows."""
        ending = "_test" if self.on_test else ""
        measured = self.measured.baselines if self.measured is not None else {}
        return {
            guesser: {name: figures[name + ending] for name in self.shown if name + ending in figures}
            for guesser, figures in measured.items()
        }

    @property
    def seeds(self) -> list[int]:
        return [run.settings.seed for run in self.runs]

    @property
    def command(self) -> str:
        """The last run's command, for these settings and all of the seeds."""
        run = self.runs[-1]
        changes = {}
        if not run.settings.freeze:
            changes = {
                "--batch_size": str(run.settings.batch_size),
                "--lr": repr(run.settings.learning_rate),
                "--seed": ",".join(map(str, self.seeds)),
            }
        if "--task" in run.call.flags and "task" in run.choices:
            changes["--task"] = run.choices["task"]  # of several that the command was given
        if run.origin.checkpoint:
            changes["--checkpoint"] = str(run.origin.epoch)  # "last" may be another one by now
        return run.call.with_flags(changes).in_processes(run.processes)


@dataclass(frozen=True)
class FinetunedModel:
    """What was reached from one pretraining checkpoint with one attention."""

    name: str
    """Of the experiment."""
    label: str
    """The name, and what tells models of one experiment apart."""
    origin: Origin
    attention: str
    tasks: dict[Column, Repeats]
    """The best settings of each."""


@dataclass(frozen=True)
class Finished:
    """The runs of some experiments."""

    models: list[FinetunedModel]
    unfinished: list[str]
    """Folders of runs without a result."""


def collect(folders: Sequence[Path]) -> Finished:
    """The finished fine-tuning runs of some experiment folders.

    Raises:
        UserError: a folder is no experiment or has no finished run, or a result cannot be read.
    """
    different: dict[Path, Path] = {}
    for folder in folders:
        different.setdefault(folder.resolve(), folder)
    names = Counter(path.name for path in different)
    found: dict[str, list[Run]] = {}
    unfinished: list[str] = []
    for path, folder in different.items():
        name = path.name if names[path.name] == 1 else str(folder)
        found[name], begun = read_runs(folder, name, "table2")
        if not found[name]:
            waiting = f" (not finished: {', '.join(begun)})" if begun else ""
            raise UserError(
                f"{folder}: expected a finished fine-tuning run in it, found none{waiting}; run one first, such as "
                f"python code/run_glue.py --task SST-2 --model {folder}"
            )
        unfinished += begun
    runs = [run for each in found.values() for run in each]
    measured: dict[str, list[Baselines]] = {}
    for task, place in dict.fromkeys((run.task, run.folder.parent) for run in runs):
        measured.setdefault(task, []).extend(read_baselines(place / BASELINES))
    columns = _columns(runs)
    models = [model for name, results in found.items() for model in _models(name, results, columns, measured)]
    return Finished(models, unfinished)


def read_runs(folder: Path, name: str, table: str) -> tuple[list[Run], list[str]]:
    """An experiment's finished runs that a report shows, and the places of its unfinished ones.

    Args:
        name: the experiment as the places call it.
        table: as of `Task.table`.

    Raises:
        UserError: no experiment, or a result cannot be read.
    """
    checkpoints = read_experiment(folder).checkpoints
    runs = [run for run in find_runs(checkpoints) if task_of(run.kind).table == table]
    return runs, [f"{name}/{place.relative_to(checkpoints)}" for place in find_unfinished(checkpoints)]


def _models(
    name: str, results: Sequence[Run], columns: Mapping[Path, Column], measured: Mapping[str, Sequence[Baselines]]
) -> list[FinetunedModel]:
    """Those of an experiment, of early checkpoints first.

    Args:
        columns: of each run, by its folder.
        measured: baselines of each task, whichever experiment measured them.
    """
    together: dict[tuple[Any, ...], list[Run]] = {}
    for run in results:
        key = (run.origin.step, run.origin.checkpoint, run.origin.sha256, json.dumps(run.attention, sort_keys=True))
        together.setdefault(key, []).append(run)
    origins, attentions = ({one(run) for run in results} for one in (lambda run: run.origin, _attention_of))
    models = []
    for _, runs in sorted(together.items()):
        origin, attention = runs[0].origin, _attention_of(runs[0])
        parts = [name, *([str(origin)] if len(origins) > 1 else []), *([attention] if len(attentions) > 1 else [])]
        label = ", ".join(parts)
        alike: dict[Column, list[Run]] = {}
        for run in runs:
            alike.setdefault(columns[run.folder], []).append(run)
        tasks = {column: _best(label, column, each, measured) for column, each in alike.items()}
        models.append(FinetunedModel(name, label, origin, attention, tasks))
    return models


def _attention_of(run: Run) -> str:
    return attention_text(run.attention)


def _columns(results: Sequence[Run]) -> dict[Path, Column]:
    """Each run's column, by its folder: the task; read in longer rows than usual it is another one, as IMDB in the
    paper; and so it is where runs of one name were asked different things.
    """
    aspects = {run.folder: _aspects(run) for run in results}
    values: dict[tuple[str, str], set[str]] = {}
    for run in results:
        for aspect, value in aspects[run.folder].items():
            values.setdefault((run.task, aspect), set()).add(value)
    columns = {}
    for run in results:
        task = task_of(run.kind)
        differing = [f"n={run.length}"] if task.usual_length is not None and run.length > task.usual_length else []
        has_objective = run.settings.objective is not None
        differing += [
            text
            for aspect, text in aspects[run.folder].items()
            if (text and len(values[run.task, aspect]) > 1) or (aspect == "objective" and has_objective)
        ]
        key = run.task + (f" ({', '.join(differing)})" if differing else "")
        name = ", ".join([task.name(run.choices), *differing])
        columns[run.folder] = Column(key, name, "" if has_objective else task.measures(run.choices), task)
    return columns


def _aspects(run: Run) -> dict[str, str]:
    """What tells runs of one name apart, as it is shown."""
    tells_apart = task_of(run.kind).tells_apart
    objective = {
        "objective": str(run.settings.objective or "cross_entropy"),
        "encoder": "frozen encoder" if run.settings.freeze else "trained encoder",
        "held_out": f"chosen on {100 * share:g} % of train" if (share := run.choices.get("held_out")) else "",
    }
    if tells_apart is None or run.texts is None:
        return objective
    return (
        objective
        | {name: f"{name} {text}" for name, text in tells_apart(run.texts).items()}
        | {"length": f"n={run.length}"}
    )


def _best(label: str, column: Column, runs: Sequence[Run], measured: Mapping[str, Sequence[Baselines]]) -> Repeats:
    """The settings whose best epochs have the highest mean; those on complete data before others."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.family, []).append(run)
    best = max(groups.values(), key=_completeness)
    complete = [each for each in groups.values() if _completeness(each)[:2] == _completeness(best)[:2]]
    best.sort(key=lambda run: run.settings.seed)
    tested = next((run.tested.data for run in best if run.tested and run.main_metric in run.test_metrics), None)
    baselines = find_baselines(measured[best[0].task], best[0].data, tested)
    others = tuple(len(each) for each in complete if each is not best)
    return Repeats(label, column, tuple(best), others, baselines)


def _completeness(runs: Sequence[Run]) -> tuple[int, int, int, float]:
    """More seeds go before a higher mean: the best of many single runs is luck, and so is a seed that did not diverge
    where others did. What is said of test data does not count: only the best settings are tested.
    """
    mean = spread_of(runs, lambda run: run.best.metrics[run.main_metric]).mean
    return -len(runs[0].warnings), runs[0].rows["train"], len(runs), mean


class Times(NamedTuple):
    """Of a run, by its log."""

    seconds: float
    """Without what it waited between two starts."""
    steps_per_second: float | None
    """Without validations; None: too short a run to tell."""
    memory_mib: float
    """At the most."""


def phases_of(run: Run, ending: str) -> list[Path]:
    """The run's folder and, of a run that began with the weights of one of the task with this ending, which learned
    without labels, that one's, if it is there.
    """
    own = run.folder.parent
    before = own.with_name(f"{own.name}{ending}").glob(f"*/{run.origin.checkpoint}") if run.origin.checkpoint else ()
    return [run.folder, *(path.parent for path in before if stated_checksum(path) == run.origin.sha256)][:2]


def read_times(folder: Path) -> Times:
    """Of a run's folder."""
    records = read_log(folder / "log.jsonl")
    starts = [number for number, record in enumerate(records) if record["type"] == "start"]
    seconds = sum(records[end - 1]["time"] - records[start]["time"] for start, end in pairwise([*starts, len(records)]))
    reports = [record for record in records if record["type"] == "train"]
    # A validation stands between some two reports; the median pair has none.
    paces = [(b["step"] - a["step"]) / (b["time"] - a["time"]) for a, b in pairwise(reports) if b["time"] > a["time"]]
    memory = max((report["memory_mib"] for report in reports), default=0.0)
    return Times(seconds, statistics.median(paces) if paces else None, memory)
