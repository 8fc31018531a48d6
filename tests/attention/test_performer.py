"""Performer: its features, when they are drawn, what they approximate, and performer-pytorch beside it."""

import pytest
import torch
from attention_cases import DIM, HEADS, qkv

from nystromformer.attention import create_attention, reference
from nystromformer.attention.performer import PerformerAttention, orthogonal_features


def performer(features: int = 16) -> PerformerAttention:
    torch.manual_seed(1)
    module = create_attention("performer", num_heads=HEADS, head_dim=DIM, num_features=features)
    assert isinstance(module, PerformerAttention)
    return module


def test_directions_are_orthogonal_and_each_is_standard_normal() -> None:
    blocks = torch.stack([orthogonal_features(2 * DIM, DIM, 0, draw) for draw in range(400)])
    directions = torch.nn.functional.normalize(blocks.double(), dim=-1)
    eye = torch.eye(DIM, dtype=torch.float64).expand(len(blocks), -1, -1)
    for part in (directions[:, :DIM], directions[:, DIM:]):
        torch.testing.assert_close(part @ part.mT, eye, atol=1e-6, rtol=0)
    assert (directions[:, :DIM] @ directions[:, DIM:].mT).abs().max() > 0.5, "blocks are independent"
    flat = blocks.flatten(0, 1).double()
    assert flat.mean(0).abs().max() < 0.06
    torch.testing.assert_close(flat.T @ flat / len(flat), eye[0], atol=0.08, rtol=0)


def test_features_average_to_softmaxs_exponential() -> None:
    q, k = (x.detach()[:, :, :9].double() for x in qkv(1, 9, scale=0.7)[:2])
    exact = torch.exp(q @ k.mT / DIM**0.5)
    products = []
    for draw in range(3000):
        features = orthogonal_features(DIM, DIM, 5, draw).double()
        products.append(reference.positive_features(q, features) @ reference.positive_features(k, features).mT)
    estimates = torch.stack(products)
    error = (estimates.mean(0) - exact).abs()
    assert (error < 5 * estimates.std(0) / len(estimates) ** 0.5).all()


def test_performer_pytorchs_module_agrees() -> None:
    peers = pytest.importorskip("performer_pytorch")
    module = performer(32)
    peer = peers.FastAttention(dim_heads=DIM, nb_features=32)
    peer.projection_matrix = module.features_MD
    x = [a.detach() for a in qkv(2, 50, scale=0.7)]
    # It adds 1e-4 to each feature, and has no masks that hold in its denominator.
    torch.testing.assert_close(module(*x), peer(*x), rtol=0.02, atol=0.02)
