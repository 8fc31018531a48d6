"""Performer attention, FAVOR+."""

from typing import Literal

from ..ranges import Size
from .base import AttentionConfig


class PerformerConfig(AttentionConfig):
    """Performer attention: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021)."""

    name: Literal["performer"] = "performer"
    num_features: Size = 256
    """Number of random features; their products approximate softmax's exponential."""
    kernel: Literal["softmax", "relu"] = "softmax"
    """What the features approximate. softmax: the exponential of softmax attention; relu: the kernel of the paper's
    generalised attention."""
    redraw_steps: Size | None = 1000
    """Training steps after which new features are drawn, from the run's seed and the step; null: never."""
