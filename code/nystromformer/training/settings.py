"""The settings of one training run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingSettings:
    """One run of the loop."""

    num_steps: int
    steps_per_epoch: int
    steps_per_report: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    max_grad_norm: float | None
    seed: int
    minutes_per_checkpoint: float
    keep_checkpoints: int
    best_metric: str | None = None
    """None: the checkpoints of the last `keep_epochs` epochs stay. Else a validation metric, the higher the better: the
    weights of the best and the last epoch stay, and the last `keep_checkpoints` checkpoints."""
    keep_epochs: int | None = None
    """None: those of all epochs."""
