"""What `run_lra.py` does for the track of self-pretraining: each seed's masked tokens first, then its classes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from signal import Signals
from typing import NoReturn

from nystromformer.errors import UserError
from nystromformer.runs.record import Run
from nystromformer.tasks.experiment.door import OpenedFinetuning, run_device
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import say
from nystromformer.tasks.experiment.start import Pretrained, pretrained_in
from nystromformer.tasks.finetuning.command import summary
from nystromformer.tasks.finetuning.run import digest, files_of, identity, train
from nystromformer.tasks.finetuning.settings import Sweep
from nystromformer.tasks.finetuning.sweep import Finetuned, load_splits, plan_setup, run_sweep
from nystromformer.tasks.lra.task import Arena, TokensOf
from nystromformer.training import join_group
from nystromformer.training.finite import Diverged


@dataclass(frozen=True)
class Phases:
    """What is trained: tokens, then classes."""

    tokens: TokensOf
    classes: Arena
    of_tokens: Sweep
    of_classes: Sweep
    """Both of the same seeds, and one combination of settings."""


def run_phases(experiment: Experiment, phases: Phases, device: str, show: Callable[[str], None]) -> NoReturn:
    """Run both phases of each seed, show their table, and end the process with an exit status.

    Args:
        show: prints a text; of several processes only the main one's is called.

    Raises:
        UserError: anything that does not fit.
    """
    with join_group() as group:
        opened = OpenedFinetuning(experiment, run_device(experiment, device, group), group, None, None)
        group.on_main(phases.classes.check)
        results: list[Run] = []
        setup, done, status = None, None, 0
        for seed in phases.of_classes.seeds:
            begun = self_pretrained(opened, phases, seed)
            if isinstance(begun, Signals):
                status = 128 + begun
                break
            after = replace(opened, pretrained=begun)
            setup = group.check(lambda: plan_setup(after, phases.classes, replace(phases.of_classes, seeds=(seed,))))  # noqa: B023  # called at once
            done = run_sweep(setup)
            results += done.results
            if done.stopped_by is not None:
                status = 128 + done.stopped_by
                break
            if done.diverged:
                raise UserError(done.diverged[0])
        if not status and group.is_main and setup is not None and done is not None:
            whole = replace(setup, sweep=phases.of_classes)
            show(summary(whole, Finetuned(results, splits=done.splits, test=done.test)))
    group.leave(status)


def self_pretrained(opened: OpenedFinetuning, phases: Phases, seed: int) -> Pretrained | Signals:
    """The encoder that a seed's masked tokens have taught, trained now where it was not; or the signal that stopped it.

    Raises:
        UserError: the data do not fit, or the run has diverged.
    """
    group = opened.group
    sweep = replace(phases.of_tokens, seeds=(seed,))
    setup = group.check(lambda: plan_setup(opened, phases.tokens, sweep))
    (settings,) = sweep.runs
    splits = load_splits(setup)
    say(group, "%s: masked tokens: %s", phases.tokens.name, settings)
    try:
        result = train(setup, splits, settings)
    except Diverged as error:
        raise UserError(f"{settings}: {error}") from error
    if isinstance(result, Signals):
        return result
    files = files_of(setup, splits, settings)
    facts = identity(setup, splits, settings)
    own = {**facts, "settings": {key: value for key, value in facts["settings"].items() if key != "seed"}}
    epoch = result.last.epoch
    return group.check(lambda: pretrained_in(files.read_weights(epoch), files.weights(epoch), digest(own)[:16]))


def phases_of(tokens: TokensOf, classes: Arena, sweep: Sweep, token_steps: int, token_rate: float) -> Phases:
    """Both phases of a sweep whose steps they share.

    Args:
        token_steps: of the first.
        token_rate: its highest learning rate.

    Raises:
        UserError: steps that leave nothing for one phase, or end between two validations; several settings.
    """
    assert sweep.every is not None, "its steps are counted"
    total = sweep.epochs * sweep.every
    if not 0 < token_steps < total or token_steps % sweep.every:
        raise UserError(
            f"--token_steps {token_steps}: expected a multiple of --every {sweep.every} below --steps {total}, which "
            "both phases share"
        )
    if len(sweep.batch_sizes) > 1 or len(sweep.learning_rates) > 1:
        raise UserError("--track spt: expected one --batch_size and one --lr, found several")
    count = token_steps // sweep.every
    first = replace(sweep, epochs=count, learning_rates=(token_rate,), baselines=False, discard_weights=False)
    return Phases(tokens, classes, first, replace(sweep, epochs=sweep.epochs - count))
