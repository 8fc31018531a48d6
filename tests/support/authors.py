"""The attentions of the paper's authors, written out as their code computes them.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, E width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

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
