"""Fine-tuning in two phases: of each seed first a definition that needs no labels, then the one that learns them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import NoReturn

from nystromformer.errors import UserError
from nystromformer.runs.record import Run
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.opening import OpenedFinetuning, run_device
from nystromformer.tasks.experiment.run import say
from nystromformer.tasks.experiment.start import Pretrained, pretrained_in
from nystromformer.tasks.finetuning.definition import Definition
from nystromformer.tasks.finetuning.run import train, weights_path
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.sweep import load_splits, plan_setup, run_sweep, summary
from nystromformer.training import join_group
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.optim import Diverged


def run_phases(
    experiment: Experiment,
    first: Definition,
    second: Definition,
    sweep: Sweep,
    epochs: int,
    device: str,
    show: Callable[[str], None],
) -> NoReturn:
    """Run both phases of each seed, show their table, and end the process with an exit status.

    Args:
        sweep: of the second phase, with one combination of settings; the first has the same seeds and settings.
        epochs: of the first phase.
        show: prints a text; of several processes only the main one's is called.

    Raises:
        UserError: anything that does not fit.
    """
    with join_group() as group:
        opened = OpenedFinetuning(experiment, run_device(experiment, device, group), group, None, None)
        stopped_by = _train_seeds(opened, first, second, sweep, epochs, show)
    group.leave(0 if stopped_by is None else 128 + stopped_by)


def _train_seeds(
    opened: OpenedFinetuning,
    first: Definition,
    second: Definition,
    sweep: Sweep,
    epochs: int,
    show: Callable[[str], None],
) -> Signals | None:
    group = opened.group
    group.on_main(second.check)
    results: list[Run] = []
    for seed in sweep.seeds:
        of_second = replace(sweep, seeds=(seed,))
        of_first = replace(of_second, epochs=epochs, baselines=False, objective=None, patience=None)
        encoder = pretrain(opened, first, of_first)
        if isinstance(encoder, Signals):
            return encoder
        begun = replace(opened, pretrained=encoder)
        setup = group.check(partial(plan_setup, begun, second, of_second))
        done = run_sweep(setup)
        if done.stopped_by is not None:
            return done.stopped_by
        if done.diverged:
            raise UserError(done.diverged[0])
        results += done.results
    if group.is_main:
        show(summary(replace(setup, sweep=sweep), replace(done, results=results)))
    return None


def pretrain(opened: OpenedFinetuning, first: Definition, sweep: Sweep) -> Pretrained | Signals:
    """The encoder that the first phase of one seed has taught, trained now where it was not; or the signal that stopped
    it.

    Raises:
        UserError: the data do not fit, or the run has diverged.
    """
    group = opened.group
    setup = group.check(lambda: plan_setup(opened, first, sweep))
    (settings,) = sweep.runs
    splits = load_splits(setup)
    say(group, "%s: pretraining: %s", first.name, settings)
    try:
        result = train(setup, splits, settings)
    except Diverged as error:
        raise UserError(f"{settings}: {error}") from error
    if isinstance(result, Signals):
        return result
    path = weights_path(result, result.last.epoch)
    return group.check(lambda: pretrained_in(read_checkpoint(path), path, result.family))
