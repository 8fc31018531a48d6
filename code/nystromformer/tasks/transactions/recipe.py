"""How clients' events are trained on: what config.json says, and what flags say otherwise.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import replace

from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.settings import Sweep

ARCHITECTURES = ("encoder", "lstm", "gru")
"""What may read the events."""


def check_start(from_run: object, train_only: str | None, pretrain_epoch: int) -> None:
    """Check what training begins with.

    Raises:
        UserError: flags that exclude each other.
    """
    if from_run is not None and pretrain_epoch:
        raise UserError(
            "--from_run: expected no --pretrain_epoch with it, because each of the two provides the initial encoder"
        )
    if train_only not in (None, "attention"):
        raise UserError(f"--train_only {train_only}: expected attention")
    if train_only is not None and from_run is None and not pretrain_epoch:
        raise UserError(
            "--train_only attention: expected --from_run or --pretrain_epoch with it, because the other weights are "
            "not trained"
        )


def pretraining_sweep(sweep: Sweep, epochs: int) -> Sweep:
    """The same for so many passes that guess masked events.

    Raises:
        UserError: it has several settings.
    """
    if len(sweep.batch_sizes) > 1 or len(sweep.learning_rates) > 1:
        raise UserError("--pretrain_epoch: expected one --batch_size and one --lr, found several")
    return replace(sweep, epochs=epochs, baselines=False, objective=None, patience=None, discard_weights=False)
