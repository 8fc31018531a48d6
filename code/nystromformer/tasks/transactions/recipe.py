"""How clients' events are trained on: what config.json says, and what flags say otherwise.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import replace

from nystromformer.config import ExperimentConfig
from nystromformer.config.ranges import LEAST_RATE, MOST, MOST_RATE
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.settings import Sweep, numbers

ARCHITECTURES = ("encoder", "lstm", "gru")
"""What may read the events."""


def plan_passes(
    config: ExperimentConfig,
    flags: Sweep,
    *,
    epochs: int | None,
    batch_size: str | None,
    lr: str | None,
    warmup: float | None,
) -> Sweep:
    """The runs of a command: as config.json's `pretraining_setting` says, but for the flags that are given.

    Args:
        flags: what else is set.
        epochs: passes over the training clients.
        batch_size, lr: one value or several.

    Raises:
        UserError: a value that is none.
    """
    setting = config.pretraining_setting
    return replace(
        flags,
        batch_sizes=numbers("--batch_size", batch_size or str(setting.batch_size), int, 1, MOST),
        learning_rates=numbers("--lr", lr or repr(setting.learning_rate), float, LEAST_RATE, MOST_RATE),
        epochs=epochs or setting.epoch,
        warmup=setting.warmup if warmup is None else warmup,
    )


def check_start(from_run: object, train_only: str | None, pretrain_epoch: int) -> None:
    """Check what training begins with.

    Raises:
        UserError: flags that exclude each other.
    """
    if from_run is not None and pretrain_epoch:
        raise UserError("--from_run: expected no --pretrain_epoch beside it: each gives the encoder that is begun with")
    if train_only not in (None, "attention"):
        raise UserError(f"--train_only {train_only}: expected attention")
    if train_only is not None and from_run is None and not pretrain_epoch:
        raise UserError(
            "--train_only attention: expected --from_run or --pretrain_epoch beside it: the rest stays as it is"
        )


def pretraining_sweep(sweep: Sweep, epochs: int) -> Sweep:
    """The same for so many passes that guess masked events.

    Raises:
        UserError: it has several settings.
    """
    if len(sweep.batch_sizes) > 1 or len(sweep.learning_rates) > 1:
        raise UserError("--pretrain_epoch: expected one --batch_size and one --lr, found several")
    return replace(sweep, epochs=epochs, baselines=False, discard_weights=False)
