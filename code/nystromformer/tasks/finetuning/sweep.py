"""All runs of a fine-tuning command: each trains, stops and resumes as pretraining does; then the best ones predict,
and a table is shown.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import NoReturn

from tokenizers import Tokenizer

from nystromformer.errors import UserError
from nystromformer.machine import machine_facts
from nystromformer.runs.baselines import BASELINES, Baselines, add_baselines, find_baselines, read_baselines
from nystromformer.runs.figures import Spread, shown
from nystromformer.runs.record import Run, best_combination
from nystromformer.tables import terminal_width
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedFinetuning, open_finetuning, run_device
from nystromformer.tasks.experiment.run import say
from nystromformer.tasks.finetuning.baselines import constant_baseline, kept_words, words_baseline
from nystromformer.tasks.finetuning.definition import Definition, FitsLength, Loading, Splits
from nystromformer.tasks.finetuning.encoded import EncodedTexts
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.objective import check_labels, check_suits
from nystromformer.tasks.finetuning.predictions import has_predictions, predict, test_fingerprint
from nystromformer.tasks.finetuning.run import Setup, exact_shares, train, words_folder
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.start import finetuning_config, load_encoder
from nystromformer.tasks.finetuning.tables import guessers_table, table
from nystromformer.tasks.finetuning.target import Guessed, TokenLabels
from nystromformer.training import Device, Group, join_group
from nystromformer.training.optim import Diverged
from nystromformer.wording import listed, number_of

logger = logging.getLogger(__name__)


Begin = Callable[[Experiment, Device, Group], OpenedFinetuning]


@dataclass(frozen=True)
class Finetuned:
    """What became of a command's runs."""

    results: list[Run]
    stopped_by: Signals | None = None
    diverged: list[str] = field(default_factory=list)
    """What is to be said of the runs that came to no result."""
    splits: Splits | None = None
    """The data of the runs; None where they were stopped."""
    test: dict[str, Examples] = field(default_factory=dict)
    """The data that the best runs predicted."""


def open_sweeps(
    experiment: Experiment,
    definitions: Sequence[Definition],
    sweep: Sweep,
    device: Device,
    group: Group,
    begin: Begin | None = None,
) -> list[Setup]:
    """Open an experiment to fine-tune it on some tasks, or to train it from initial weights on tasks of which each has
    its own kinds of token.

    What is wrong with the last task is known now, and not once the tasks before it have trained for hours.

    Args:
        begin: gives what the runs begin with; None: the experiment's checkpoint, or initial weights for such kinds.

    Raises:
        UserError: anything in the folder, the checkpoint, the data or the flags that does not fit.
    """
    if begin is not None:
        opened = begin(experiment, device, group)
    elif all(definition.kinds is not None for definition in definitions):
        opened = OpenedFinetuning(experiment, device, group, None, None)
    else:
        opened = open_finetuning(experiment, device, sweep.checkpoint, group)
    setups = [group.check(partial(plan_setup, opened, definition, sweep)) for definition in definitions]
    setup = setups[0]
    if (pretrained := setup.pretrained) is not None:
        group.check(lambda: load_encoder(setup.definition.target.build(setup.config.model), setup.config, pretrained))
    for definition in (setup.definition for setup in setups):
        group.on_main(definition.check)
        if sweep.baselines:
            group.on_main(partial(read_baselines, experiment.checkpoints / definition.name / BASELINES))
    return setups


def plan_setup(opened: OpenedFinetuning, definition: Definition, sweep: Sweep) -> Setup:
    """What all runs of a sweep share, but for the data.

    Raises:
        UserError: the rows that the flags ask for do not fit the model.
    """
    experiment = opened.experiment
    if definition.kinds is None:
        assert opened.tokenizer is not None, "what it begins with has one"
        vocabulary: Tokenizer | None = definition.tokenizer(opened.tokenizer)
        assert vocabulary is not None
        num_tokens = vocabulary.get_vocab_size()
    else:
        vocabulary, num_tokens = None, definition.kinds
    if sweep.freeze and opened.group.size > 1:
        raise UserError(f"--freeze: expected one process, found {opened.group.size}")
    if sweep.objective is not None:
        check_suits(sweep.objective, definition.target, experiment.config, opened.group.size)
    length = sweep.length or sweep.pad_to or experiment.config.model.max_seq_len
    if isinstance(definition, FitsLength) and not (sweep.length or sweep.pad_to):
        assert vocabulary is not None, "a task on text has one"
        definition, length = definition.fit_length(vocabulary, length)
    if sweep.pad_to is not None and sweep.pad_to < length:
        raise UserError(f"--pad_to {sweep.pad_to}: expected at least --length {length}")
    config = finetuning_config(experiment, length, num_tokens, sweep.pad_to)
    loading = Loading(
        vocabulary=vocabulary,
        length=length,
        sentence_types=config.model.num_sen_type > 1,
        train_rows=sweep.train_rows,
        cache=experiment.checkpoints / definition.name / "cache",
        most_global=min(
            (most for layer in config.model.attentions if (most := layer.most_global) is not None), default=None
        ),
    )
    where = experiment, opened.device, opened.group
    return Setup(*where, opened.pretrained, config, definition, loading, sweep)


def run_sweep(setup: Setup) -> Finetuned:
    """Run, or go on with, all runs of a sweep; finished ones are only read.

    Raises:
        UserError: the data are missing or malformed, or a run cannot go on.
    """
    group, definition, sweep = setup.group, setup.definition, setup.sweep
    splits = load_splits(setup)
    if (folder := words_folder(setup, splits)) is not None:
        group.on_main(lambda: _tell_words(setup, splits, folder))
    results: list[Run] = []
    diverged: list[str] = []
    for number, settings in enumerate(sweep.runs, start=1):
        if len(sweep.runs) > 1:
            say(group, "%s: run %d of %d: %s", definition.name, number, len(sweep.runs), settings)
        try:
            result = train(setup, splits, settings)
        except Diverged as error:
            # The others of a grid, and the next tasks, may well do better.
            diverged.append(f"{settings}: {error}")
            say(group, "%s", error)
            continue
        if isinstance(result, Signals):
            return Finetuned(results, result)
        results.append(result)
    if not results:
        return Finetuned(results, diverged=diverged, splits=splits)
    # Of a grid only the best combination sees test data.
    test = group.check(lambda: definition.test(setup.loading))
    for run in best_combination(results):
        if not group.on_main(partial(has_predictions, setup, splits, test, run)):
            results[results.index(run)] = predict(setup, splits, test, run)
    return Finetuned(results, diverged=diverged, splits=splits, test=test)


def load_splits(setup: Setup) -> Splits:
    """The data of all runs of a sweep, the same in every process, and what is to be said of them.

    Raises:
        UserError: they are missing or malformed, or differ between processes.
    """
    group = setup.group
    # The main process first: what takes long it leaves in a cache for the others.
    group.on_main(lambda: setup.definition.prepare(setup.loading))
    splits = group.check(lambda: setup.definition.load(setup.loading))
    group.same(
        data=splits.fingerprint,
        checkpoint=setup.pretrained.sha256 if setup.pretrained else "",
        config=setup.config.model_dump(mode="json"),
        runs=[str(run) for run in setup.sweep.runs],
    )
    if (objective := setup.sweep.objective) is not None:
        labels = {"training": splits.train.labels, "validation": splits.validation[""].labels}
        shares = group.check(lambda: check_labels(objective, labels))
        splits.notes.append(f"--objective {objective.name}: positive is {splits.positive or 'label 1'}, {shares}")
    exact_share = exact_shares(splits, setup.config.model.attentions)
    exact = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in exact_share.items())
    for line in (*splits.notes, f"examples short enough for exact attention in every layer: {exact}"):
        say(group, "%s", line)
    for line in (*splits.warnings, *splits.test_warnings):
        say(group, "warning: %s", line)
    return splits


def run_sweeps(
    experiment: Experiment,
    definitions: Sequence[Definition],
    sweep: Sweep,
    device: str,
    show: Callable[[str], None],
    begin: Begin | None = None,
) -> NoReturn:
    """Run a sweep of each task, one after another, show its table, and end the process with an exit status.

    Args:
        show: prints a text; of several processes only the main one's is called.
        begin: see `open_sweeps`.

    Raises:
        UserError: anything that does not fit; the tasks before it are done.
    """
    with join_group() as group:
        chosen = run_device(experiment, device, group)
        setups = open_sweeps(experiment, definitions, sweep, chosen, group, begin)
        status, diverged = 0, list[str]()
        for setup in setups:
            done = run_sweep(setup)
            diverged += [f"{setup.definition.name}: {text}" for text in done.diverged]
            if done.stopped_by is not None:
                status = 128 + done.stopped_by
                break
            if group.is_main and done.results:
                show(summary(setup, done))
        if diverged:
            raise UserError(f"{len(diverged)} of the runs ended without a result:{listed(diverged)}")
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
    baselines = _baselines(setup, done) if setup.sweep.baselines or setup.definition.keeps_words else None
    begun = done.results[0].origin.checkpoint or "from initial weights"
    title = f"{setup.definition.name}, {setup.experiment.folder}, {begun}"
    return f"\n{title}\n{table(done.results, baselines, terminal_width())}"


def _baselines(setup: Setup, done: Finetuned) -> dict[str, dict[str, Spread]]:
    """What guessers reach, from the file that keeps it where the data are the same."""
    definition, splits = setup.definition, done.splits
    assert splits is not None, "only stopped runs have none"
    target, metrics, train = definition.target, definition.metrics, splits.train
    labelled = {name: rows for name, rows in done.test.items() if rows.labels is not None}
    compared = splits.validation | {f"_{name}": rows for name, rows in labelled.items()}
    if not isinstance(target, Guessed | TokenLabels):
        logger.info("%s: there are no baselines for this task", definition.name)
        return {}
    path = setup.experiment.checkpoints / definition.name / BASELINES
    tested = test_fingerprint(done.test) if labelled else ""
    measured = find_baselines(read_baselines(path), splits.fingerprint, tested)
    if measured is None:
        guessed = constant_baseline(train, compared, target, metrics) if isinstance(target, Guessed) else {}
        texts = {ending: rows for ending, rows in compared.items() if isinstance(rows, EncodedTexts)}
        if isinstance(target, Guessed) and isinstance(train, EncodedTexts) and len(texts) == len(compared):
            words = kept_words(words_folder(setup, splits), train, target)
            guessed["tf-idf"] = words_baseline(words, texts, metrics)
        measured = Baselines(
            data=splits.fingerprint,
            tested=tested,
            rows={name: len(examples) for name, examples in (splits.named | labelled).items()},
            baselines=guessed | definition.rules(splits, compared),
            call=setup.sweep.call,
            machine=machine_facts(),
        )
        add_baselines(path, measured)
    return measured.baselines


def _tell_words(setup: Setup, splits: Splits, folder: Path) -> None:
    """Fit the regression on words, or read it, and say what it reaches, before anything is trained."""
    target, train, held_out = setup.definition.target, splits.train, splits.validation[""]
    assert isinstance(target, Guessed)
    assert isinstance(train, EncodedTexts)
    assert isinstance(held_out, EncodedTexts)
    began = time.monotonic()
    if not folder.exists():
        logger.info("fitting tf-idf to the words of %s", number_of(len(train), "text"))
    words = kept_words(folder, train, target)
    figures = words_baseline(words, {"": held_out}, setup.definition.metrics)
    text = ", ".join(f"{name} {shown(name, spread)}" for name, spread in figures.items())
    seconds = time.monotonic() - began
    logger.info("baseline: tf-idf of words and word pairs: %s on the validation data (%.1f s)", text, seconds)
