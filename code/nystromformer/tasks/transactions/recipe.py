"""How clients' events are trained on: what config.json says, and what flags say otherwise.

The launcher imports this too, on machines that have neither torch nor numpy.
"""

from __future__ import annotations

from dataclasses import replace

from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.settings import Sweep

ARCHITECTURES = ("encoder", "lstm", "gru")
"""What may read the events."""


def pretraining_sweep(sweep: Sweep, epochs: int) -> Sweep:
    """The same for so many passes that guess masked events.

    Raises:
        UserError: it has several settings.
    """
    if len(sweep.batch_sizes) > 1 or len(sweep.learning_rates) > 1:
        raise UserError("--pretrain_epoch: expected one --batch_size and one --lr, found several")
    return replace(sweep, epochs=epochs, baselines=False, objective=None, patience=None)
