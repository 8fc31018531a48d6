"""The finished fine-tuning runs of experiments; those that differ in their seeds alone together."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from nystromformer.config.attention import ATTENTIONS
from nystromformer.errors import UserError
from nystromformer.tasks.declared import declared_tasks, task_of
from nystromformer.tasks.experiment.folder import read_experiment
from nystromformer.tasks.finetuning.measured import BASELINES, Measured, find_baselines, read_baselines
from nystromformer.tasks.finetuning.results import RESULT_FILE, RunResult, read_result
from nystromformer.tasks.finetuning.spread import Mark, Spread, mark, rows_behind


@dataclass(frozen=True)
class Repeats:
    """The runs of a task's best settings; they differ in their seeds alone."""

    runs: tuple[RunResult, ...]
    others: tuple[int, ...] = ()
    """Finished seeds of each other settings on the same data."""
    measured: Measured | None = None
    """The baselines on the same data, where somebody measured them."""

    @property
    def first(self) -> RunResult:
        return self.runs[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main metric, the same on the other validation split where there is one, and accuracy beside F1."""
        names = [self.first.main_metric, f"{self.first.main_metric}_mismatched"]
        names += ["accuracy"] if self.first.main_metric == "f1" else []
        return tuple(name for name in names if all(name in run.best.metrics for run in self.runs))

    def best(self, name: str) -> Spread:
        return Spread.of([run.best.metrics[name] for run in self.runs])

    def last(self, name: str) -> Spread:
        return Spread.of([run.last.metrics[name] for run in self.runs])

    @property
    def on_test(self) -> tuple[RunResult, ...]:
        """The runs that predicted test data with labels."""
        return tuple(run for run in self.runs if self.first.main_metric in run.test_metrics)

    @property
    def tested(self) -> dict[str, Spread]:
        """The main metric on test data with labels, of the runs that have it."""
        name, runs = self.first.main_metric, self.on_test
        return {name: Spread.of([run.test_metrics[name] for run in runs])} if runs else {}

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
        return sum(run.test_rows.values()) if self.on_test else rows_behind(name, run.rows)

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
        return [run.run.seed for run in self.runs]

    @property
    def command(self) -> str:
        """The newest run's command, for these settings and all of the seeds."""
        newest = max(self.runs, key=lambda run: (Path(run.folder) / RESULT_FILE).stat().st_mtime_ns)
        settings = newest.run
        changes = {
            "--batch_size": str(settings.batch_size),
            "--lr": repr(settings.learning_rate),
            "--seed": ",".join(map(str, self.seeds)),
        }
        if newest.task.startswith("glue/"):
            changes["--task"] = newest.task.removeprefix("glue/")
        # "last" may be another one by now.
        if epoch := re.fullmatch(r"cp-(\d+)\.(model|cp)", newest.checkpoint):
            changes["--checkpoint"] = str(int(epoch[1]))
        launcher = ["python", "code/torchrun.py", "--standalone", "--nproc_per_node", str(newest.processes)]
        kept = [word for flag, words in _flags(newest.command) if flag not in changes for word in words]
        if newest.processes > 1 and kept[:1] == ["python"]:
            kept[:1] = launcher
        return shlex.join([*kept, *(word for change in changes.items() for word in change)])


@dataclass(frozen=True)
class FinetunedModel:
    """What was reached from one pretraining checkpoint with one attention."""

    name: str
    """Of the experiment."""
    checkpoint: str
    checkpoint_step: int
    checkpoint_sha256: str
    attention: str
    tasks: dict[str, Repeats]
    """The best settings of each."""

    @property
    def origin(self) -> str:
        if not self.checkpoint:
            return "initial weights"
        return f"{self.checkpoint} ({self.checkpoint_sha256[:8]})"


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
    models: list[FinetunedModel] = []
    unfinished: list[str] = []
    measured: dict[str, list[Measured]] = {}
    patterns = [task.results for task in declared_tasks() if task.table == "table2"]
    every: list[tuple[str, list[RunResult]]] = []
    different: dict[Path, Path] = {}
    for folder in folders:
        different.setdefault(folder.resolve(), folder)
    names = [path.name for path in different]
    for path, folder in different.items():
        name = path.name if names.count(path.name) == 1 else str(folder)
        checkpoints = read_experiment(folder).checkpoints
        results: list[RunResult] = []
        waiting: list[str] = []
        for place in (run for pattern in patterns for run in sorted(checkpoints.glob(pattern))):
            result = read_result(place)
            if result is not None:
                results.append(_checked(result))
            elif (place / "run.lock").is_file() or (place / "log.jsonl").is_file():
                waiting.append(f"{name}/{place.relative_to(checkpoints)}")
        if not results:
            begun = f" (not finished: {', '.join(waiting)})" if waiting else ""
            raise UserError(
                f"{folder}: expected a finished fine-tuning run below {checkpoints}, found none{begun}; run one first, "
                f"such as python code/run_glue.py --task SST-2 --model {folder}"
            )
        for task, place in dict.fromkeys((run.task, Path(run.folder).parent) for run in results):
            measured.setdefault(task, []).extend(read_baselines(place / BASELINES))
        every.append((name, results))
        unfinished += waiting
    columns = _columns([run for _, results in every for run in results])
    for name, results in every:
        models += _models(name, results, columns)
    return Finished([_compared(model, measured) for model in models], unfinished)


def _compared(model: FinetunedModel, measured: Mapping[str, Sequence[Measured]]) -> FinetunedModel:
    """A model whose runs know the baselines on their data, whichever experiment measured them."""
    tasks = {}
    for task, runs in model.tasks.items():
        tested = runs.on_test[0].predicted if runs.on_test else None
        tasks[task] = replace(runs, measured=find_baselines(measured[runs.first.task], runs.first.data, tested))
    return replace(model, tasks=tasks)


def _models(name: str, results: Sequence[RunResult], columns: Mapping[str, str]) -> list[FinetunedModel]:
    """Those of an experiment, of early checkpoints first.

    Args:
        columns: of each run, by its folder.
    """
    together: dict[tuple[Any, ...], list[RunResult]] = {}
    for run in results:
        origin = (run.checkpoint_step, run.checkpoint, run.checkpoint_sha256)
        together.setdefault((*origin, json.dumps(run.attention, sort_keys=True)), []).append(run)
    models = []
    for key in sorted(together):
        step, checkpoint, sha256, _ = key
        runs = together[key]
        tasks = dict.fromkeys(columns[run.folder] for run in runs)
        cells = {task: _best([run for run in runs if columns[run.folder] == task]) for task in tasks}
        models.append(FinetunedModel(name, checkpoint, step, sha256, attention_text(runs[0].attention), cells))
    return models


def _columns(results: Sequence[RunResult]) -> dict[str, str]:
    """Each run's column, by its folder: the task; read in longer rows than usual it is another one, as IMDB in the
    paper; and so it is where runs of one name were asked different things.
    """
    asked = {run.folder: _asked(run) for run in results}
    values: dict[tuple[str, str], set[str]] = {}
    for run in results:
        for aspect, value in asked[run.folder].items():
            values.setdefault((run.task, aspect), set()).add(value)
    columns = {}
    for run in results:
        declared = task_of(run.task)
        usual = declared.usual_length if declared is not None else None
        differing = [f"n={run.length}"] if usual is not None and run.length > usual else []
        differing += [text for aspect, text in asked[run.folder].items() if len(values[run.task, aspect]) > 1]
        columns[run.folder] = run.task + (f" ({', '.join(differing)})" if differing else "")
    return columns


def _asked(run: RunResult) -> dict[str, str]:
    """What tells runs of one name apart, by aspect, as it is shown."""
    declared = task_of(run.task)
    if declared is None or declared.asked is None:
        return {}
    found = {name: f"{name} {text}" for name, text in declared.asked(Path(run.folder)).items()}
    return found | {"length": f"n={run.length}"}


def _best(runs: Sequence[RunResult]) -> Repeats:
    """The settings whose best epochs have the highest mean; those on complete data before others."""
    groups: dict[str, list[RunResult]] = {}
    for run in runs:
        groups.setdefault(run.family, []).append(run)
    cells = [Repeats(tuple(sorted(group, key=lambda run: run.run.seed))) for group in groups.values()]
    best = max(cells, key=_completeness)
    others = [
        len(cell.runs) for cell in cells if cell is not best and _completeness(cell)[:2] == _completeness(best)[:2]
    ]
    return replace(best, others=tuple(others))


def _completeness(cell: Repeats) -> tuple[int, int, int, float]:
    """More seeds go before a higher mean: the best of many single runs is luck, and so is a seed that did not diverge
    where others did.
    """
    run = cell.first
    return -len(run.every_warning), run.rows["train"], len(cell.runs), cell.best(run.main_metric).mean


def _flags(command: str) -> list[tuple[str, list[str]]]:
    """The words of a command line, cut before each flag; the first part, of the program, has the flag ""."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for word in shlex.split(command):
        if word.startswith("--"):
            parts.append((word.partition("=")[0], []))
        parts[-1][1].append(word)
    return parts


def _checked(run: RunResult) -> RunResult:
    """The same, once all that the table needs is known to be there."""
    try:
        texts = [
            run.task,
            run.main_metric,
            run.checkpoint,
            run.checkpoint_sha256,
            run.family,
            run.command,
            run.data,
            run.predicted,
            *run.every_warning,
        ]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text is missing")
        columns = _columns([run])
        (model,) = _models("", [run], columns)
        runs = model.tasks[columns[run.folder]]
        # What the report will print, tried on this run alone.
        _ = runs.command
        numbers = [epoch.metrics[name] for epoch in run.epochs for name in runs.metrics]
        numbers += [
            run.rows["train"],
            run.exact_share["validation"],
            run.run.learning_rate,
            *run.test_metrics.values(),
            *run.test_rows.values(),
        ]
        if not runs.metrics or not all(map(math.isfinite, numbers)):
            raise ValueError("a figure is missing")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{Path(run.folder) / RESULT_FILE}: expected the result of a fine-tuning run, found something else "
            f"({type(error).__name__}: {error}). Remove it, and the same command writes it again."
        ) from error
    return run


def attention_text(layers: Sequence[dict[str, Any]]) -> str:
    """Such as `nystrom (num_landmarks=64)`: landmarks, and what differs from the defaults; layers alike together."""
    shown = []
    for text, alike in groupby(map(_layer, layers)):
        count = len(list(alike))
        shown.append(text if count == len(layers) else f"{count} x {text}")
    return ", ".join(shown)


def _layer(layer: dict[str, Any]) -> str:
    name = str(layer["name"])
    fields = ATTENTIONS[name].model_fields if name in ATTENTIONS else {}
    known = {key: field.default for key, field in fields.items()}
    options = [
        f"{key}={value}"
        for key, value in sorted(layer.items(), key=lambda item: item[0] != "num_landmarks")
        if key == "num_landmarks" or (key != "name" and (key not in known or value != known[key]))
    ]
    return f"{name} ({', '.join(options)})" if options else name
