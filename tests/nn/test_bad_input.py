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
from nystromformer.config import ATTENTIONS, experiment_config
from nystromformer.model import ClassificationModel, PretrainingModel
from nystromformer.nn import Encoder, NystromAttention, replace_attention

B, N, E = 2, 10, 16
CONFIG = experiment_config(small_data(), "small").model


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
    "model": lambda x, mask: PretrainingModel(CONFIG, ["mlm"]).encoder(x[..., 0].long(), mask),
    "classification": lambda x, mask: ClassificationModel(CONFIG, 2)(x[..., 0].long(), mask),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("kind", ["ndarray", "list"])
def test_masks_that_are_no_tensors(layer: str, kind: str) -> None:
    mask = np.ones((B, N), dtype=bool)
    with pytest.raises(ValueError, match=rf"mask must be a torch.Tensor.* found {kind}"):
        LAYERS[layer](torch.rand(B, N, E), mask if kind == "ndarray" else mask.tolist())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("masked", [True, False])
def test_rows_without_tokens(layer: str, masked: bool) -> None:
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        LAYERS[layer](torch.randn(B, 0, E), torch.ones(B, 0, dtype=torch.bool) if masked else None)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attentions_without_tokens(name: str) -> None:
    q = torch.randn(B, 2, 0, 8)
    with pytest.raises(ValueError, match="expected at least one token per row, found none"):
        create_attention(name, num_heads=2, head_dim=8, max_length=16)(q, q, q)
