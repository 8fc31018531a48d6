"""What the code of the paper's authors computes, written out: attentions, and a model of the Long Range Arena.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

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
        q, k, v = (
            linear(branch, f"{layer}.attention.{name}").unflatten(2, (heads, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        x = x + linear(mix(q, k, v, mask_BN).transpose(1, 2).flatten(2), f"{layer}.attention.output")
        branch = linear(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.up")
        x = x + linear(F.gelu(branch), f"{layer}.feed_forward.down")
    pooled_BE = (norm(x, "encoder.final_norm") * mask_BN[:, :, None]).mean(1)
    if towers == 2:
        first, second = pooled_BE.chunk(2)
        pooled_BE = torch.cat([first, second, first * second, first - second], -1)
    return linear(F.relu(linear(pooled_BE, "head.mlp.0")), "head.mlp.2")
