"""The training loop, checkpoints and logs; knows no task."""

from nystromformer.training.device import choose_device
from nystromformer.training.group import Group, join_group
from nystromformer.training.loop import Trainer
from nystromformer.training.settings import Device, Step, Task, TrainingSettings

__all__ = ["Device", "Group", "Step", "Task", "Trainer", "TrainingSettings", "choose_device", "join_group"]
