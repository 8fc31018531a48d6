"""What `run_lra.py` does for the track of self-pretraining: each seed's masked tokens first, then its classes."""

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
from nystromformer.tasks.finetuning.run import files_of, train
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.sweep import load_splits, plan_setup, run_sweep, summary
from nystromformer.tasks.lra.task import Arena, TokensOf
from nystromformer.training import join_group
from nystromformer.training.optim import Diverged


def run_phases(
    experiment: Experiment,
    tokens: TokensOf,
    classes: Arena,
    sweeps: tuple[Sweep, Sweep],
    device: str,
    show: Callable[[str], None],
) -> NoReturn:
    """Run both phases of each seed, show their table, and end the process with an exit status.

    Args:
        sweeps: of tokens and of classes, with the same seeds and one combination of settings.
        show: prints a text; of several processes only the main one's is called.

    Raises:
        UserError: anything that does not fit.
    """
    with join_group() as group:
        opened = OpenedFinetuning(experiment, run_device(experiment, device, group), group, None, None)
        stopped_by = _train_seeds(opened, tokens, classes, sweeps, show)
    group.leave(0 if stopped_by is None else 128 + stopped_by)


def _train_seeds(
    opened: OpenedFinetuning,
    tokens: TokensOf,
    classes: Arena,
    sweeps: tuple[Sweep, Sweep],
    show: Callable[[str], None],
) -> Signals | None:
    group = opened.group
    group.on_main(classes.check)
    results: list[Run] = []
    for seed in sweeps[1].seeds:
        of_tokens, of_classes = (replace(sweep, seeds=(seed,)) for sweep in sweeps)
        encoder = pretrain_on_tokens(opened, tokens, of_tokens)
        if isinstance(encoder, Signals):
            return encoder
        begun = replace(opened, pretrained=encoder)
        setup = group.check(partial(plan_setup, begun, classes, of_classes))
        done = run_sweep(setup)
        if done.stopped_by is not None:
            return done.stopped_by
        if done.diverged:
            raise UserError(done.diverged[0])
        results += done.results
    if group.is_main:
        show(summary(replace(setup, sweep=sweeps[1]), replace(done, results=results)))
    return None


def pretrain_on_tokens(opened: OpenedFinetuning, tokens: TokensOf, sweep: Sweep) -> Pretrained | Signals:
    """The encoder that the masked tokens of one seed have taught, trained now where it was not; or the signal that
    stopped it.

    Raises:
        UserError: the data do not fit, or the run has diverged.
    """
    group = opened.group
    setup = group.check(lambda: plan_setup(opened, tokens, sweep))
    (settings,) = sweep.runs
    splits = load_splits(setup)
    say(group, "%s: masked tokens: %s", tokens.name, settings)
    try:
        result = train(setup, splits, settings)
    except Diverged as error:
        raise UserError(f"{settings}: {error}") from error
    if isinstance(result, Signals):
        return result
    files, epoch = files_of(setup, splits, settings), result.last.epoch
    return group.check(lambda: pretrained_in(files.read_weights(epoch), files.weights(epoch), result.family))


def divide_steps(sweep: Sweep, token_steps: int | None, token_rate: float) -> tuple[Sweep, Sweep]:
    """The sweeps of both phases, which share the steps of one.

    Args:
        token_steps: of the first; None: half.
        token_rate: its highest learning rate.

    Raises:
        UserError: steps that leave nothing for one phase, or end between two validations; several settings.
    """
    assert sweep.every is not None, "its steps are counted"
    steps, total = token_steps or sweep.half_of_steps, sweep.epochs * sweep.every
    if not 0 < steps < total or steps % sweep.every:
        raise UserError(
            f"--token_steps {steps}: expected a multiple of --every {sweep.every} below --steps {total}, which both "
            "phases share"
        )
    if len(sweep.batch_sizes) > 1 or len(sweep.learning_rates) > 1:
        raise UserError("--track spt: expected one --batch_size and one --lr, found several")
    count = steps // sweep.every
    first = replace(sweep, epochs=count, learning_rates=(token_rate,), baselines=False, discard_weights=False)
    return first, replace(sweep, epochs=sweep.epochs - count)
