"""The training loop, checkpoints and logs; knows no task."""

from nystromformer.training.device import Device, choose_device
from nystromformer.training.group import Group, join_group
from nystromformer.training.loop import Fitted, fit
from nystromformer.training.state import TrainingSettings
from nystromformer.training.trainable import Step, Trainable

__all__ = [
    "Device",
    "Fitted",
    "Group",
    "Step",
    "Trainable",
    "TrainingSettings",
    "choose_device",
    "fit",
    "join_group",
]
