"""The predictions of finished runs, as files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from nystromformer.files.writing import NewFile
from nystromformer.runs.objective import THRESHOLD
from nystromformer.runs.record import EpochMetrics, Run, Tested
from nystromformer.tasks.finetuning.objective import log_odds, measure_tested
from nystromformer.tasks.finetuning.opening import Opened
from nystromformer.tasks.finetuning.trainable import Finetuning, Scored, build_model
from nystromformer.training.checkpoint import hold_folder

PREDICTIONS = "predictions"


def predict(opened: Opened, run: Run, trained: Finetuning | None, validated: Sequence[Scored]) -> Run:
    """The run with its predictions, which are made where they are not there, of these test data and by the weights that
    are asked for. Where there are no test data, those of earlier ones stay. What the run's training has `validated` is
    not scored again.
    """
    group, splits, tested, chosen = opened.group, opened.splits, run.tested, run.choose(opened.flags.predict)
    if tested is not None and tested.files and tested.epoch == chosen.epoch:
        is_same = (tested.data, tested.shown) == (opened.tested, splits.shown)
        is_without = not opened.test and splits.shown == tested.shown.partition(" ")[0]
        if (is_same or is_without) and group.on_main(
            lambda: all((run.folder / name).is_file() for name in tested.files)
        ):
            return run
    with hold_folder(run.folder, group):
        known = (scores for metrics, scores in validated if metrics == chosen.metrics)
        scores = (trained or build_model(opened, run.settings, None)).evaluate(run, chosen, next(known, {}))
        done = group.on_main(lambda: write_predictions(opened, run, chosen, scores))
        group.say("predictions: %s", run.folder / PREDICTIONS)
        return done


def write_predictions(opened: Opened, run: Run, chosen: EpochMetrics, scores: Mapping[str, Tensor]) -> Run:
    """Write a task's prediction files, and what they reach on test data into the record; returns that."""
    task, splits, test = opened.task, opened.splits, opened.test
    made = run.folder / f"{PREDICTIONS}.tmp"
    shutil.rmtree(made, ignore_errors=True)
    metrics = task.write(splits, test, scores, made)
    objective, tested_on = run.settings.objective, test.get("test")
    if objective is not None and tested_on is not None and tested_on.labels is not None:
        threshold = 0.0 if task.kinds is None else chosen.metrics.get(THRESHOLD, 0.0)  # texts' scores are adjusted
        metrics |= measure_tested(objective, log_odds(scores["test"]).numpy(), tested_on.labels, threshold)
    files = {f"{PREDICTIONS}/{path.name}": path for path in sorted(made.iterdir())}
    for name in set(() if run.tested is None else run.tested.files).difference(files):
        # Of data that are not predicted any more: beside the new ones it would pass for one of them.
        (run.folder / name).unlink(missing_ok=True)
    (run.folder / PREDICTIONS).mkdir(exist_ok=True)
    for name, path in files.items():
        path.replace(run.folder / name)
    made.rmdir()
    tested = Tested(
        epoch=chosen.epoch,
        data=opened.tested,
        shown=splits.shown,
        files=tuple(files),
        metrics=metrics,
        rows={name: len(examples) for name, examples in test.items() if examples.labels is not None},
        warnings=tuple(splits.test_warnings) if test else (),
    )
    done = replace(run, tested=tested)
    done.write()
    return done


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows, all or none."""
    with NewFile(path) as file:
        for row in (header, *rows):
            file.write(("\t".join(row) + "\n").encode())
