"""What the fine-tuning commands do once their flags are read."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from nystromformer.errors import UserError
from nystromformer.machine import machine_facts
from nystromformer.runs.baselines import BASELINES, Baselines, add_baselines, find_baselines, read_baselines
from nystromformer.runs.figures import Spread
from nystromformer.tables import terminal_width
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import run_device
from nystromformer.tasks.finetuning.baselines import Guessed, constant_baseline, text_baselines
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.predictions import test_fingerprint
from nystromformer.tasks.finetuning.run import Setup
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.sweep import Begin, Finetuned, load_splits, open_sweeps, run_sweep
from nystromformer.tasks.finetuning.tables import guessers_table, table
from nystromformer.tasks.finetuning.trainable import Metrics
from nystromformer.training import join_group
from nystromformer.wording import listed

logger = logging.getLogger(__name__)


def run_sweeps(
    experiment: Experiment,
    definitions: Sequence[Definition],
    sweep: Sweep,
    device: str,
    show: Callable[[str], None],
    begin: Begin | None = None,
    after: Callable[[Sequence[Finetuned]], str] | None = None,
) -> NoReturn:
    """Run a sweep of each task, one after another, show its table, and end the process with an exit status.

    Args:
        show: prints a text; of several processes only the main one's is called.
        begin: see `open_sweeps`.
        after: what is shown once all tasks have results.

    Raises:
        UserError: anything that does not fit; the tasks before it are done.
    """
    with join_group() as group:
        chosen = run_device(experiment, device, group)
        setups = open_sweeps(experiment, definitions, sweep, chosen, group, begin)
        status, diverged, finished = 0, [], list[Finetuned]()
        for setup in setups:
            definition, done = setup.definition, run_sweep(setup)
            diverged += [f"{definition.name}: {text}" for text in done.diverged]
            if done.stopped_by is not None:
                status = 128 + done.stopped_by
                break
            if group.is_main and done.results:
                show(summary(setup, done))
            # Without their data, which may be large.
            finished += [Finetuned(done.results)] if done.results else []
        if after is not None and group.is_main and len(finished) == len(setups):
            show(after(finished))
        if diverged:
            raise UserError(f"{len(diverged)} of the runs came to no result:{listed(diverged)}")
    group.leave(status)


def run_baselines(
    experiment: Experiment, definition: Definition, sweep: Sweep, device: str, show: Callable[[str], None]
) -> NoReturn:
    """Measure the guessers alone, show their table, and end the process with an exit status.

    Raises:
        UserError: anything that does not fit.
    """
    with join_group() as group:
        (setup,) = open_sweeps(experiment, [definition], sweep, run_device(experiment, device, group), group)
        splits = load_splits(setup)
        test = group.check(lambda: definition.test(setup.loading))
        if group.is_main:
            measured = _baselines(setup, Finetuned([], splits=splits, test=test))
            show(f"\n{definition.name}, in percent\n{guessers_table(measured, terminal_width())}")
    group.leave(0)


def summary(setup: Setup, done: Finetuned) -> str:
    """What is shown of finished runs, with the guessers beside them where they are asked for."""
    baselines = _baselines(setup, done) if setup.sweep.baselines else None
    begun = done.results[0].origin.checkpoint or "from initial weights"
    title = f"{setup.definition.name}, {setup.experiment.folder}, {begun}"
    return f"\n{title}\n{table(done.results, baselines, terminal_width())}"


def _baselines(setup: Setup, done: Finetuned) -> dict[str, dict[str, Spread]]:
    """What guessers reach, from the file that keeps it where the data are the same."""
    definition, seeds, splits = setup.definition, setup.sweep.seeds, done.splits
    assert splits is not None, "only stopped runs have none"
    labelled = {name: rows for name, rows in done.test.items() if rows.labels is not None}
    compared = splits.validation | {f"_{name}": rows for name, rows in labelled.items()}
    target = definition.target
    if not isinstance(target, Guessed):
        logger.info("%s: there are no baselines for this task", definition.name)
        return {}
    path = setup.experiment.checkpoints / definition.name / BASELINES
    tested = test_fingerprint(done.test) if labelled else ""
    measured = find_baselines(read_baselines(path), splits.fingerprint, tested, seeds)
    if measured is None:
        measured = Baselines(
            data=splits.fingerprint,
            tested=tested,
            rows={name: len(examples) for name, examples in (splits.named | labelled).items()},
            seeds=list(seeds),
            baselines=_guessed(target, definition.metrics, splits.train, compared, seeds)
            | definition.rules(splits, compared),
            call=setup.sweep.call,
            machine=machine_facts(),
        )
        add_baselines(path, measured)
    return measured.baselines


def _guessed(
    target: Guessed, metrics: Metrics, train: Examples, compared: Mapping[str, Examples], seeds: Sequence[int]
) -> dict[str, dict[str, Spread]]:
    """The guessers of text; of other data the one that always gives the same answer."""
    texts = {ending: rows for ending, rows in compared.items() if isinstance(rows, EncodedTexts)}
    if isinstance(train, EncodedTexts) and len(texts) == len(compared):
        return text_baselines(train, texts, target, metrics, seeds)
    return constant_baseline(train, compared, target, metrics)
