"""Performer attention, FAVOR+."""

from typing import Literal

from ..messages import Impossible
from ..ranges import Size
from .base import AttentionConfig


class PerformerConfig(AttentionConfig):
    """Performer attention: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021)."""

    exceptional = ({"as_in_table3": True},)

    name: Literal["performer"] = "performer"
    num_features: Size = 256
    """Number of random features; their products approximate softmax's exponential."""
    kernel: Literal["softmax", "relu"] = "softmax"
    """What the features approximate. softmax: the exponential of softmax attention; relu: the kernel of the paper's
    generalised attention."""
    redraw_steps: Size | None = 1000
    """Training steps after which new features are drawn, from the run's seed and the step; null: never."""

    as_in_table3: bool = False
    """Compute what the Nyströmformer authors ran with performer-pytorch: the softmax kernel with scores divided by
    head_dim instead of its square root, the package's epsilon of 1e-4, and padding in the denominator."""

    def impossible(self) -> Impossible:
        if self.as_in_table3 and self.kernel != "softmax":
            yield ("kernel",), f'expected "softmax" with as_in_table3 = true, found "{self.kernel}"'
