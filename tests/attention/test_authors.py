"""The authors' attention, written out as their code evaluates it, against the options that name it."""

from typing import Any

import authors
import pytest
import torch
from attention_cases import DIM, HEADS, qkv, suffix_mask
from small import LENGTH, VOCABULARY, small_config
from torch import Tensor

from nystromformer.attention import Attention, create_attention
from nystromformer.model import ClassificationModel

LANDMARKS, TAPS = 8, 5
PRETRAINING: dict[str, Any] = {"segments": "padded", "pinv_start": "batch"}
CLASSIFICATION: dict[str, Any] = {**PRETRAINING, "ignore_mask": True}


def nystrom(**parameters: Any) -> Attention:
    return create_attention("nystrom", num_heads=HEADS, head_dim=DIM, **parameters)


def authors_attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, weight: Tensor) -> Tensor:
    mask_BN = torch.ones(len(q), q.shape[2], dtype=q.dtype) if keep is None else keep.to(q.dtype)
    return authors.nystrom(q, k, v, mask_BN, weight, LANDMARKS)


def padded(length: int) -> tuple[list[Tensor], Tensor]:
    """Rows of several lengths; in their padding stands what an encoder makes of padding, not zeros."""
    return qkv(4, length, dtype=torch.float64), suffix_mask(length, length, length - 3, length // 2, 1)


@pytest.mark.parametrize("length", [LANDMARKS, 4 * LANDMARKS, 16 * LANDMARKS])
def test_their_classification_passes_no_mask_on(length: int) -> None:
    (q, k, v), keep = padded(length)
    ours = nystrom(num_landmarks=LANDMARKS, conv_kernel_size=TAPS, **CLASSIFICATION).double()
    assert ours.skip is not None
    inputs = [q, k, v, ours.skip.weight]
    out, expected = ours(q, k, v, keep), authors_attention(q, k, v, None, ours.skip.weight)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    for gradient, wanted in zip(*(torch.autograd.grad(x, inputs, upstream) for x in (out, expected)), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-9)
    # What it declares not to hold, it does not: padding has an output, and its content reaches the other tokens.
    assert out[1, :, -3:].abs().min() > 0
    changed = torch.where(keep[:, None, :, None], v, 0.0)
    assert (ours(q, k, changed, keep) - out)[1, :, 0].abs().max() > 1e-3
    assert not any(getattr(ours.holds, name) for name in ("padding", "masking", "zeros", "batch"))


@pytest.mark.parametrize("length", [LANDMARKS, 4 * LANDMARKS])
def test_their_pretraining_masks(length: int) -> None:
    (q, k, v), keep = padded(length)
    ours = nystrom(num_landmarks=LANDMARKS, conv_kernel_size=TAPS, **PRETRAINING).double()
    assert ours.skip is not None
    out, expected = ours(q, k, v, keep), authors_attention(q, k, v, keep, ours.skip.weight)
    kept = keep[:, None, :, None].expand_as(out)
    torch.testing.assert_close(out[kept], expected[kept], rtol=1e-9, atol=1e-10)
    held = ours.holds
    assert (held.masking, held.zeros, held.padding, held.batch) == (True, True, False, False)
    assert not out[~kept].any()


@pytest.mark.parametrize("name", ["nystrom", "softmax"])
def test_a_config_json_says_it_for_a_whole_model(name: str) -> None:
    attention = {"name": name, "ignore_mask": True} | (PRETRAINING if name == "nystrom" else {})
    landmarks = 8 if name == "nystrom" else None
    config = small_config(model__attn_type=attention, model__num_landmarks=landmarks, model__dropout_prob=0.0).model
    assert all(layer.ignore_mask and layer.conv_kernel_size for layer in config.attentions)
    torch.manual_seed(0)
    model = ClassificationModel(config, 3).eval()
    tokens = torch.randint(5, VOCABULARY, (2, LENGTH))
    keep = suffix_mask(LENGTH, LENGTH, 9)
    assert torch.equal(model(tokens, keep), model(tokens))
    tokens[1, 9:] = 1
    assert not torch.equal(model(tokens, keep)[1], model(tokens[:, :24], keep[:, :24])[1]), "padding is attended to"
