"""How far vectors of tokens are from those that they shall be like.

Shapes: B rows, N tokens, E width.
"""

import torch
from torch import Tensor


def relative_square(found_BNE: Tensor, wanted_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Σ (found - wanted)² / Σ wanted², over valid tokens; float32.

    Args:
        keep_BN: bool, True for valid tokens; None: all are.
    """
    found, wanted = (valid_alone(x, keep_BN).float() for x in (found_BNE, wanted_BNE))
    return (found - wanted).square().sum() / wanted.square().sum()


def valid_alone(x_BNE: Tensor, keep_BN: Tensor | None) -> Tensor:
    """Zero at the other tokens."""
    return x_BNE if keep_BN is None else torch.where(keep_BN[..., None], x_BNE, 0.0)
