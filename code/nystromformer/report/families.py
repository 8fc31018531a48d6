"""Families of finished runs, which differ in their seeds alone: what the tables of all tasks are made of."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from nystromformer.config.attention_text import attention_text
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json, write_text
from nystromformer.runs.baselines import BASELINES, Baselines, find_baselines, read_baselines
from nystromformer.runs.figures import Mark, Spread, mark, rows_behind
from nystromformer.runs.record import Run, find_runs, find_unfinished, spread_of
from nystromformer.tasks.declaration import Task, task_of
from nystromformer.tasks.experiment.folder import read_experiment
from nystromformer.training.checkpoint import stated_checksum
from nystromformer.training.log import read_log


@dataclass(frozen=True)
class Family:
    """Runs of an experiment that differ in their seeds alone, by seed."""

    experiment: str
    """Its name, or its path where several have one name."""
    runs: tuple[Run, ...]
    measured: Baselines | None
    """The baselines on the same data, where somebody measured them."""

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def task(self) -> Task:
        return task_of(self.first.kind)

    @property
    def attention(self) -> str:
        return attention_text(self.first.attention)

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
        measured = self.measured.baselines if self.measured is not None else {}
        return {
            guesser: {name: figures[name + ending] for name in self.shown if name + ending in figures}
            for guesser, figures in measured.items()
        }

    def mark(self, name: str) -> Mark:
        """What stands beside a shown figure: whether it is clear of the baselines."""
        guesses = (figures[name] for figures in self.baselines.values() if name in figures)
        return mark(name, self.shown[name], guesses, self.examples(name))

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

    def costs(self, earlier: str = "") -> dict[str, Any]:
        """By the logs: `seconds` of each run, without what it waited between two starts; `examples_per_second` without
        validations, None of too short a run; `memory_mib` at the most.

        Args:
            earlier: ending of the task of runs that learned without labels, on whose weights these began: their time
                and memory count, too.
        """
        times = [[_read_times(folder) for folder in _phases(run, earlier)] for run in self.runs]
        paces = [phases[0]["pace"] * self.first.settings.batch_size for phases in times if phases[0]["pace"]]
        return {
            "seconds": [sum(each["seconds"] for each in phases) for phases in times],
            "examples_per_second": statistics.median(paces) if paces else None,
            "memory_mib": max(each["memory"] for phases in times for each in phases),
        }

    @property
    def record(self) -> dict[str, Any]:
        """What it is and what it reached, plain data: fractions."""
        first = self.first
        return {
            "experiment": self.experiment,
            "task": first.task,
            "origin": asdict(first.origin),
            "attention": self.attention,
            "settings": {key: value for key, value in asdict(first.settings).items() if key != "seed"},
            "seeds": self.seeds,
            "main_metric": first.main_metric,
            "shown": {name: asdict(spread) for name, spread in self.shown.items()},
            "marks": {name: self.mark(name) for name in self.shown},
            "best": {name: asdict(self.best(name)) for name in self.metrics},
            "last": {name: asdict(self.last(name)) for name in self.metrics},
            "best_epochs": [run.best.epoch for run in self.runs],
            "tested_epochs": [run.tested_epoch for run in self.on_test],
            "data": first.data,
            "rows": first.rows,
            "test_rows": self.on_test[0].test_rows if self.on_test else {},
            "warnings": list(first.every_warning),
            "device": first.device,
            "command": self.command,
            "folders": [str(run.folder) for run in self.runs],
            "baselines": None if self.measured is None else asdict(self.measured),
        }


def read_families(
    folders: Sequence[Path], table: str, wanted: Callable[[Run], bool] = lambda run: True, example: str = ""
) -> tuple[list[Family], list[str]]:
    """The families of some experiment folders that a report shows, and the places of unfinished runs.

    Args:
        table: as of `Task.table`.
        example: a command that would make one.

    Raises:
        UserError: a folder is no experiment, or has no such run; a result or baselines cannot be read.
    """
    different: dict[Path, Path] = {}
    for folder in folders:
        different.setdefault(folder.resolve(), folder)
    names = Counter(path.name for path in different)
    together: dict[tuple[str, str], list[Run]] = {}
    unfinished: list[str] = []
    for path, folder in different.items():
        name = path.name if names[path.name] == 1 else str(folder)
        checkpoints = read_experiment(folder).checkpoints
        runs = [run for run in find_runs(checkpoints) if task_of(run.kind).table == table and wanted(run)]
        begun = [f"{name}/{place.relative_to(checkpoints)}" for place in find_unfinished(checkpoints)]
        if not runs and not begun:
            raise UserError(f"{folder}: expected finished runs, found none; run one first, {example}")
        for run in runs:
            # The rows of Table 2 are experiments.
            together.setdefault((name if table == "table2" else "", run.family), []).append(run)
        unfinished += begun
    if not together:
        shown = ", ".join(map(str, folders)) or "no folder"
        raise UserError(
            f"{shown}: expected finished runs, found none (not finished: {', '.join(unfinished) or 'none'}); run one "
            f"first, {example}"
        )
    places = dict.fromkeys((run.task, run.folder.parent) for runs in together.values() for run in runs)
    measured: dict[str, list[Baselines]] = {}
    for task, place in places:
        measured.setdefault(task, []).extend(read_baselines(place / BASELINES))
    return [_family(name, runs, measured) for (name, _), runs in together.items()], unfinished


def _family(name: str, runs: list[Run], measured: Mapping[str, Sequence[Baselines]]) -> Family:
    runs.sort(key=lambda run: run.settings.seed)
    tested = next((run.tested.data for run in runs if run.tested and run.main_metric in run.test_metrics), None)
    return Family(name, tuple(runs), find_baselines(measured[runs[0].task], runs[0].data, tested))


def write_report(out: Path, text: str, data: Mapping[str, Any]) -> None:
    """Markdown, and its figures as JSON beside it.

    Raises:
        UserError: it cannot be written.
    """
    write_text(out, text)
    write_json(out.with_suffix(".json"), data)


def check_out(out: Path) -> None:
    """Before anything is read.

    Raises:
        UserError: another ending than Markdown's.
    """
    if out.suffix != ".md":
        raise UserError(f"--out {out}: expected a name that ends in .md")


def _phases(run: Run, ending: str) -> list[Path]:
    """The run's folder and, of a run that began with the weights of one of the task with this ending, that one's."""
    own = run.folder.parent
    before = own.with_name(f"{own.name}{ending}").glob(f"*/{run.origin.checkpoint}") if run.origin.checkpoint else ()
    return [run.folder, *(path.parent for path in before if stated_checksum(path) == run.origin.sha256)][:2]


def _read_times(folder: Path) -> dict[str, Any]:
    records = read_log(folder / "log.jsonl")
    starts = [number for number, record in enumerate(records) if record["type"] == "start"]
    seconds = sum(records[end - 1]["time"] - records[start]["time"] for start, end in pairwise([*starts, len(records)]))
    reports = [record for record in records if record["type"] == "train"]
    # A validation stands between some two reports; the median pair has none.
    paces = [(b["step"] - a["step"]) / (b["time"] - a["time"]) for a, b in pairwise(reports) if b["time"] > a["time"]]
    memory = max((report["memory_mib"] for report in reports), default=0.0)
    return {"seconds": seconds, "pace": statistics.median(paces) if paces else None, "memory": memory}
