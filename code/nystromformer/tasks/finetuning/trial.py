"""A learning rate by trial: where none is asked for, three are tried in short runs, and the one that is best on
validation examples is taken.
"""

import math
from dataclasses import replace
from signal import Signals

import numpy as np
from torch import Tensor

from nystromformer.runs.settings import RunSettings
from nystromformer.tasks.experiment.run import held_folder, say
from nystromformer.tasks.finetuning.definition import Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints, Labels
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.run import Setup, files_of, train
from nystromformer.training.optim import Diverged
from nystromformer.wording import number_of

PRETRAINED, INITIAL = (3e-5, 1e-4, 3e-4), (3e-4, 1e-3, 3e-3)
"""Rates to try, with pretrained weights and with initial ones. The middle one is taken where there is no time to."""
SHARE = 0.1
"""Of a run's work that all trials together take at most."""
_SHARE_OF_SCORES = 0.2
"""Of a trial's work that the validation takes at most."""
_LEAST_STEPS = 4
_TRAINING = 3
"""Work of a token in training, relative to its forward pass: a backward pass takes twice as long."""


class Some:
    """Some of a split's examples, in ascending order. Implements Examples."""

    def __init__(self, whole: Examples, numbers: Ints) -> None:
        self.name = whole.name
        self.lengths, self.rows, self.tokens = (each[numbers] for each in (whole.lengths, whole.rows, whole.tokens))
        self.labels: Labels | None = None if whole.labels is None else whole.labels[numbers]
        self.fingerprint = f"{len(numbers)} of {whole.fingerprint}"
        self._whole, self._numbers = whole, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        return self._whole.batch(self._numbers[numbers], pad_to)


def with_rate(setup: Setup, rate: float) -> Setup:
    """The same with one learning rate."""
    return replace(setup, sweep=replace(setup.sweep, learning_rates=(rate,)))


def choose_rate(setup: Setup, splits: Splits) -> Setup | Signals:
    """The setup with a learning rate: as it is where it has some, else with the one whose trial ends with the lowest
    loss on validation examples; the signal that stopped a trial, if one did.

    Finished trials are only read, so that the same command takes the same rate.

    Raises:
        UserError: a folder of a trial cannot be used.
    """
    sweep, group = setup.sweep, setup.group
    if sweep.learning_rates or sweep.freeze:
        return setup
    rates = PRETRAINED if setup.pretrained else INITIAL
    (batch_size,) = sweep.batch_sizes
    held_out = splits.validation[""]
    steps, scored = trial_size(splits.train, held_out, batch_size, sweep.epochs, len(rates))
    if steps < _LEAST_STEPS:
        say(group, "the run is too short to try learning rates: %g is used (--lr sets another)", rates[1])
        return with_rate(setup, rates[1])
    trying = replace(setup, is_trial=True)
    shortened = replace(splits, validation={"": Some(held_out, subset(len(held_out), scored))})
    losses: dict[float, float] = {}
    for number, rate in enumerate(rates, start=1):
        raised = raised_rate(rate, steps, sweep.epochs * -(-len(splits.train) // batch_size))
        settings = RunSettings(
            *(batch_size, raised, 1, sweep.seeds[0], sweep.warmup, sweep.bucket, sweep.pad_to), every=steps
        )
        tried = number_of(steps, "step")
        say(group, "trial %d of %d: learning rate %g, raised to %g for %s", number, len(rates), rate, raised, tried)
        try:
            result = train(trying, shortened, settings)
        except Diverged:
            losses[rate] = math.inf
            continue
        if isinstance(result, Signals):
            return result
        losses[rate] = result.last.metrics["loss"]
        files = files_of(trying, shortened, settings)
        with held_folder(files.folder, group):
            group.on_main(files.discard_weights)
    best = min(losses, key=lambda rate: (losses[rate], rate))
    told = ", ".join(f"{rate:g} {loss:.4f}" for rate, loss in losses.items())
    say(group, "loss on %s after a trial of each learning rate: %s; %g is used", number_of(scored, "text"), told, best)
    return with_rate(setup, best)


def raised_rate(rate: float, steps: int, all_steps: int) -> float:
    """The rate of a trial of some of a run's steps.

    The best rate of a short run is too high for a long one: few steps have to be large to get anywhere. A walk in
    random directions gets as far as the square root of its number of steps, so the rate is raised by that.
    """
    return float(f"{rate * math.sqrt(all_steps / steps):.2g}")


def trial_size(train: Examples, validation: Examples, batch_size: int, epochs: int, count: int) -> tuple[int, int]:
    """Steps of each of `count` trials, and validation examples that it scores: together `SHARE` of a run's work at
    most, where it may be 0 steps.
    """
    learned, scored = int(np.sum(train.tokens)), int(np.sum(validation.tokens))
    work = SHARE * epochs * (_TRAINING * learned + scored) / count
    rows = min(len(validation), max(1, int(_SHARE_OF_SCORES * work / scored * len(validation))))
    of_step = _TRAINING * learned / len(train) * min(batch_size, len(train))
    left = work - rows * scored / len(validation)
    return max(0, int(left / of_step)), rows
