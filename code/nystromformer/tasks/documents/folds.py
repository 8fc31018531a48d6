"""What `run_classify.py` does once its flags are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from nystromformer.data.tokenizer import TOKENIZER_FILE, load_tokenizer, save_tokenizer, train_tokenizer
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.runs.figures import Spread, shown
from nystromformer.runs.objective import TEMPERATURE, THRESHOLD
from nystromformer.runs.record import Run, best_combination, by_combination, spread_of
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedFinetuning
from nystromformer.tasks.experiment.run import say
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.settings import FinetuningFlags, Sweep
from nystromformer.tasks.finetuning.sweep import Finetuned, run_sweeps
from nystromformer.training import Device, Group


def check_scratch(from_scratch: bool, vocab_size: int | None, shared: FinetuningFlags) -> None:
    """Check what --from_scratch stands beside.

    Raises:
        UserError: flags that have no use beside it, or none without it.
    """
    if not from_scratch and vocab_size is not None:
        raise UserError(f"--vocab_size {vocab_size}: expected --from_scratch with it; a checkpoint has a tokenizer")
    given = {
        "--checkpoint": shared.checkpoint != FinetuningFlags.checkpoint,
        "--tokenizer": shared.tokenizer is not None,
        "--freeze": shared.freeze,
    }
    if from_scratch and (found := [flag for flag, is_given in given.items() if is_given]):
        raise UserError(f"--from_scratch: expected no {found[0]} with it")


def run_documents(
    experiment: Experiment,
    task: Documents,
    sweep: Sweep,
    device: str,
    show: Callable[[str], None],
    from_scratch: bool = False,
    vocab_size: int | None = None,
) -> NoReturn:
    """Run a sweep on a table, or on each of its folds, and end the process with an exit status.

    Args:
        show: prints a text; of several processes only the main one's is called.
        from_scratch: begin with initial weights and a tokenizer of the table's texts.
        vocab_size: of that; None: config.json's.

    Raises:
        UserError: anything that does not fit.
    """
    folds = task.question.division.folds
    tasks: list[Definition] = [task]
    if folds is not None:
        tasks = [task.fold(number) for number in range(1, folds + 1)]
    begin = partial(open_from_scratch, task, vocab_size) if from_scratch else None
    start = experiment.checkpoints / "documents" / f"{task.question.name}-{folds}-folds"
    run_sweeps(experiment, tasks, sweep, device, show, begin, None if folds is None else partial(over_folds, start))


def open_from_scratch(
    task: Documents, vocab_size: int | None, experiment: Experiment, device: Device, group: Group
) -> OpenedFinetuning:
    """Initial weights, and a tokenizer trained on the training table's texts, kept below the checkpoints.

    Raises:
        UserError: the table is none, or the tokenizer cannot be written.
    """
    size = vocab_size or experiment.config.model.vocab_size
    texts = group.check(lambda: [text for row in task.tables.rows.texts for text in row])
    digest = hashlib.sha256(f"{size};".encode())
    for text in texts:
        digest.update(f"{len(text)};{text}".encode())
    folder = (
        experiment.checkpoints / "documents" / task.question.name / "cache" / f"tokenizer-{digest.hexdigest()[:12]}"
    )

    def make() -> None:
        # What is wrong with the labels is said before anything is written.
        task.check()
        if not (folder / TOKENIZER_FILE).is_file():
            say(group, "training a tokenizer of at most %s tokens on %s", f"{size:,}", task.tables.rows.table.name)
            save_tokenizer(train_tokenizer(texts, size), folder)

    group.on_main(make)
    tokenizer: Tokenizer = group.check(lambda: load_tokenizer(folder))
    return OpenedFinetuning(experiment, device, group, None, tokenizer)


def over_folds(start: Path, done: Sequence[Finetuned]) -> str:
    """What is shown of all folds, and kept: the mean and the deviation over them of the settings whose mean is best.

    One choice for all: each fold's own best settings would say what no settings reach.

    Args:
        start: of the file's path, before a hash of all runs behind it and its ending.
    """
    together = [by_combination(each.results) for each in done]
    common = [combination for combination in together[0] if all(combination in fold for fold in together)]
    if not common:
        return "\nno settings finished on every fold"

    def rank(combination: tuple[int, float]) -> tuple[int, float]:
        runs = [fold[combination] for fold in together]
        return sum(map(len, runs)), Spread.of([_mean(each, each[0].main_metric) for each in runs]).mean

    best = max(common, key=rank)
    chosen = [fold[best] for fold in together]
    first = chosen[0][0]
    facts: dict[str, Any] = {"folds": len(chosen), "batch_size": best[0], "learning_rate": best[1]}
    facts["seeds"] = [[run.settings.seed for run in runs] for runs in chosen]
    lines = [f"over {len(chosen)} folds, of the best epochs (mean ± deviation over the folds):"]
    if len(common) > 1:
        lines.append(f"  batch {best[0]}, lr {best[1]:.3g}: of {len(common)} settings the best mean over all folds")
    for name in (name for name in first.last.metrics if not name.startswith(("loss", THRESHOLD, TEMPERATURE))):
        facts[name] = [_mean(runs, name) for runs in chosen]
        lines.append(f"  {name} {shown(name, Spread.of(facts[name]))}")
    # Each fold's own best settings have predicted.
    tested = [best_combination(each.results) for each in done]
    for name in tested[0][0].test_metrics:
        means = [spread_of(runs, lambda run: run.test_metrics[name]).mean for runs in tested]  # noqa: B023  # called at once
        facts[f"{name}_test"] = means
        own = " of each fold's own best settings" if len(common) > 1 else ""
        lines.append(f"  test {name} {shown(name, Spread.of(means))}{own}")
    data = [[run.identity, run.tested and run.tested.data] for runs in (*chosen, *tested) for run in runs]
    path = start.with_name(f"{start.name}-{hashlib.sha256(json.dumps(data).encode()).hexdigest()[:8]}.json")
    write_json(path, facts | {"command": str(first.call), "version": first.version})
    return "\n".join(["", *lines, f"kept in {path}"])


def _mean(runs: Sequence[Run], metric: str) -> float:
    return spread_of(runs, lambda run: run.best.metrics[metric]).mean
