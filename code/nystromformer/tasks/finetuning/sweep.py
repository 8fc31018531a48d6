"""All runs of a fine-tuning command: each trains, stops and resumes as pretraining does; then the best ones predict."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from signal import Signals

from tokenizers import Tokenizer

from nystromformer.errors import UserError
from nystromformer.runs.baselines import BASELINES, read_baselines
from nystromformer.runs.record import Run, best_combination
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.memory import check_room_to_train
from nystromformer.tasks.experiment.opening import OpenedFinetuning, open_finetuning
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.finetuning.predictions import has_predictions, predict
from nystromformer.tasks.finetuning.run import Setup, exact_shares, files_of, train
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.start import finetuning_config, load_encoder
from nystromformer.training import Device, Group
from nystromformer.training.finite import Diverged

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


def finetune(
    experiment: Experiment,
    definition: Definition,
    sweep: Sweep,
    device: Device,
    group: Group = Group(),  # noqa: B008  # immutable
) -> Finetuned:
    """Open a task and run its sweep.

    Args:
        group: the processes that train together; each calls this.

    Raises:
        UserError: anything in the folder, the checkpoint, the data or the flags that does not fit.
    """
    (setup,) = open_sweeps(experiment, [definition], sweep, device, group)
    return run_sweep(setup)


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
        opened = open_finetuning(experiment, device, sweep.checkpoint, sweep.tokenizer, group)
    setups = [group.check(partial(plan_setup, opened, definition, sweep)) for definition in definitions]
    group.check(lambda: _check_weights(setups[0]))
    for definition in definitions:
        group.on_main(definition.check)
        if sweep.baselines:
            group.on_main(partial(read_baselines, experiment.checkpoints / definition.name / BASELINES))
    return setups


def _check_weights(setup: Setup) -> None:
    """Check that the model takes the checkpoint's weights.

    Raises:
        UserError: lists all that differs.
    """
    if setup.pretrained is not None:
        load_encoder(setup.definition.target.build(setup.config.model), setup.config, setup.pretrained)


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
    length = sweep.length or sweep.pad_to or experiment.config.model.max_seq_len
    if sweep.pad_to is not None and sweep.pad_to < length:
        raise UserError(f"--pad_to {sweep.pad_to}: expected at least --length {length}")
    config = finetuning_config(experiment, length, num_tokens, sweep.pad_to)
    # Of the rows' lengths nothing is known yet, but for padded ones; a device takes one at least.
    check_room_to_train(experiment.config_file, config.model, opened.device.device, 1, sweep.pad_to or 1)
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
    if sweep.discard_weights:
        for run in results:
            files = files_of(setup, splits, run.settings)
            with held_folder(files.folder, group):
                group.on_main(files.discard_weights)
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
    shares = exact_shares(splits, setup.config.model.attentions)
    exact = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in shares.items())
    for line in (*splits.notes, f"examples short enough for exact attention in every layer: {exact}"):
        say(group, "%s", line)
    largest = int((splits.train.rows * splits.train.lengths).max())
    if largest > setup.budget:
        say(
            group,
            "the largest example has %s tokens in its rows and is computed at once, though gpu_setting.inst_per_gpu "
            "rows have %s: it sets the memory that is needed",
            *(f"{largest:,}", f"{setup.budget:,}"),
        )
    for line in (*splits.warnings, *splits.test_warnings):
        say(group, "warning: %s", line)
    return splits
