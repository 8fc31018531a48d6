"""What the code of the paper's authors computes, written out: attentions, and a model of the Long Range Arena.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

Mix = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From q, k, v (B, H, N, D) and a mask of ones and zeros (B, N)."""


def softmax(q: Tensor, k: Tensor, v: Tensor, mask_BN: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[3] ** 0.5 - 1e6 * (1 - mask_BN[:, None, None])
    return torch.softmax(scores, -1) @ v


def nystrom(q: Tensor, k: Tensor, v: Tensor, mask_BN: Tensor, weight: Tensor | None, landmarks: int) -> Tensor:
    """Six iterations from a start value of the whole batch; the convolution of V, where it has a weight."""
    _, H, N, D = q.shape
    mask_B1N1 = mask_BN[:, None, :, None]
    q, k = (x * mask_B1N1 / D**0.25 for x in (q, k))
    negative = 1e9 * (1 - mask_BN[:, None, None])
    if landmarks == N:
        out = torch.softmax(q @ k.mT - negative, -1) @ v
    else:
        q_landmarks, k_landmarks = (x.reshape(-1, H, landmarks, N // landmarks, D).mean(-2) for x in (q, k))
        first = torch.softmax(q @ k_landmarks.mT, -1)
        second = torch.softmax(q_landmarks @ k_landmarks.mT, -1)
        third = torch.softmax(q_landmarks @ k.mT - negative, -1)
        identity = torch.eye(landmarks, dtype=q.dtype)
        z = second.mT / second.sum(-2).max() / second.sum(-1).max()
        for _ in range(6):
            az = second @ z
            z = 0.25 * z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
        out = first @ z @ (third @ v)
    if weight is None:
        return out
    return out + torch.conv2d(v * mask_B1N1, weight, padding=(weight.shape[2] // 2, 0), groups=H)


def linformer(q: Tensor, k: Tensor, v: Tensor, mask_BN: Tensor, matrix_HKN: Tensor) -> Tensor:
    k, v = (matrix_HKN @ (x * mask_BN[:, None, :, None]) for x in (k, v))
    return torch.softmax(q @ k.mT / q.shape[3] ** 0.5, -1) @ v


def performer(q: Tensor, k: Tensor, v: Tensor, mask_BN: Tensor, features_MD: Tensor) -> Tensor:
    """Their module around performer-pytorch's FastAttention, over the N x N weights."""
    mask_B1N1, root = mask_BN[:, None, :, None], q.shape[3] ** 0.25
    q, k, v = q / root, k / root * mask_B1N1, v * mask_B1N1

    def features_of(x: Tensor, over: tuple[int, ...]) -> Tensor:
        scaled = x / root
        dashed = torch.einsum("bhnd,md->bhnm", scaled, features_MD)
        halves = scaled.square().sum(-1, keepdim=True) / 2
        return (dashed - halves - dashed.amax(over, keepdim=True).detach()).exp() + 1e-4

    weights = features_of(q, (-1,)) @ features_of(k, (-1, -2)).mT
    return weights / weights.sum(-1, keepdim=True) @ v


def reformer(q: Tensor, v: Tensor, mask_BN: Tensor | None, rotations_RDK: Tensor, **settings: Any) -> Tensor:
    """transformers' LSHSelfAttention itself, on what is projected already, with given rotations for all heads."""
    _, H, N, D = q.shape
    config = ReformerConfig(
        attention_head_size=D,
        num_attention_heads=H,
        hidden_size=H * D,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=len(rotations_RDK),
        is_decoder=False,
        max_position_embeddings=N,
        **settings,
    )
    peer = LSHSelfAttention(config, layer_idx=0).to(q.dtype).eval()

    def drawn(shape: tuple[int, ...], **options: Any) -> Tensor:
        return rotations_RDK[:, :, : shape[-1]].permute(1, 0, 2).to(q.dtype).expand(H, -1, -1, -1).reshape(shape)

    q_BNE, v_BNE = (x.transpose(1, 2).flatten(2) for x in (q, v))
    with (
        patch.object(peer.query_key, "forward", lambda x: q_BNE),
        patch.object(peer.value, "forward", lambda x: v_BNE),
        patch.object(torch, "randn", drawn),
    ):
        out: Tensor = peer(q_BNE, mask_BN).hidden_states
    return out.unflatten(2, (H, D)).transpose(1, 2)


def arena_logits(
    weights: dict[str, Tensor], tokens_BN: Tensor, mask_BN: Tensor, mixes: list[Mix], heads: int, towers: int
) -> Tensor:
    """Their model of the Long Range Arena in evaluation: layers that normalise first, a final norm whose output is
    zeroed where the mask is, its mean over all N positions, and an MLP.

    Args:
        weights: by this project's names.
        mixes: the attention of each layer.
        towers: 1, or 2 where the rows' second half are the first ones' partners.
    """

    def linear(x: Tensor, name: str) -> Tensor:
        bias = weights.get(f"{name}.bias")
        return x @ weights[f"{name}.weight"].T + (0 if bias is None else bias)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    word = weights["encoder.embeddings.word.weight"] + weights["encoder.embeddings.sentence_type.weight"]
    x = word[tokens_BN] + weights["encoder.embeddings.position.weight"][: tokens_BN.shape[1]]
    for number, mix in enumerate(mixes):
        layer = f"encoder.layers.{number}"
        branch = norm(x, f"{layer}.attention_norm")
        names = ("query", "key" if f"{layer}.attention.key.weight" in weights else "query", "value")
        q, k, v = (
            linear(branch, f"{layer}.attention.{name}").unflatten(2, (heads, -1)).transpose(1, 2) for name in names
        )
        x = x + linear(mix(q, k, v, mask_BN).transpose(1, 2).flatten(2), f"{layer}.attention.output")
        branch = linear(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.up")
        x = x + linear(F.gelu(branch), f"{layer}.feed_forward.down")
    pooled_BE = (norm(x, "encoder.final_norm") * mask_BN[:, :, None]).mean(1)
    if towers == 2:
        first, second = pooled_BE.chunk(2)
        pooled_BE = torch.cat([first, second, first * second, first - second], -1)
    return linear(F.relu(linear(pooled_BE, "head.mlp.0")), "head.mlp.2")
