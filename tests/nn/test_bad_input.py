"""Masks that are no tensors, and rows without tokens: a sentence each, from every layer.

Shapes: B batch, N tokens, E width.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from small import small_data
from torch import Tensor, nn

from nystromformer.attention import create_attention
from nystromformer.config import experiment_config
from nystromformer.model import ClassificationModel
from nystromformer.nn import Encoder, NystromAttention, replace_attention

B, N, E = 2, 10, 16


def _in_torch(x: Tensor, mask: object) -> object:
    layer = replace_attention(nn.MultiheadAttention(E, 2, batch_first=True), "nystrom", num_landmarks=4)
    return layer(x, x, x, key_padding_mask=mask, need_weights=False)


def _alone(x: Tensor, mask: object) -> object:
    q = x.unflatten(2, (2, -1)).transpose(1, 2)
    return create_attention("nystrom", num_heads=2, head_dim=E // 2)(q, q, q, mask)


LAYERS: dict[str, Callable[[Tensor, object], object]] = {
    "attention": _alone,
    "NystromAttention": lambda x, mask: NystromAttention(E, 2, num_landmarks=4)(x, mask),
    "Encoder": lambda x, mask: Encoder(E, 1, 2, num_landmarks=4)(x, mask),
    "in torch": _in_torch,
    "model": lambda x, mask: ClassificationModel(experiment_config(small_data(), "small").model, 2)(
        x[..., 0].long(), mask
    ),
}


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "in torch"])
def test_masks_that_are_no_tensors(layer: str) -> None:
    with pytest.raises(ValueError, match=r"mask must be a torch.Tensor.* found ndarray"):
        LAYERS[layer](torch.rand(B, N, E), np.ones((B, N), dtype=bool))


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_without_tokens(layer: str) -> None:
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        LAYERS[layer](torch.randn(B, 0, E), torch.ones(B, 0, dtype=torch.bool))
