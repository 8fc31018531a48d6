"""The paper's attention.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from nystromformer.attention.reference.rows import per_row, softmax_matrix


def pseudo_inverse_steps(a: Tensor, iterations: int) -> Tensor:
    """Eq. 14 from Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞): (m, m) -> (m, m)."""
    eye = torch.eye(len(a), dtype=a.dtype)
    z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
    return z


def segment_bounds(n: int, num_landmarks: int) -> list[tuple[int, int]]:
    """Near-equal segments of n ≥ M tokens: segment j holds the tokens r with ⌊r·M/n⌋ = j."""
    members = [[r for r in range(n) if r * num_landmarks // n == j] for j in range(num_landmarks)]
    return [(group[0], group[-1] + 1) for group in members]


def segment_means(x: Tensor, num_landmarks: int) -> Tensor:
    """Eq. 16 over near-equal segments: (n, D) -> (M, D)."""
    return torch.stack([x[a:b].mean(0) for a, b in segment_bounds(len(x), num_landmarks)])


def strided_tokens(x: Tensor, num_landmarks: int) -> Tensor:
    """The first token of each near-equal segment: (n, D) -> (M, D)."""
    return torch.stack([x[first] for first, _ in segment_bounds(len(x), num_landmarks)])


def lloyd_centres(x: Tensor, num_landmarks: int, iterations: int) -> Tensor:
    """Lloyd's iterations from the segments' means, which a centre without tokens falls back to: (n, D) -> (M, D)."""
    means = segment_means(x, num_landmarks)
    centres = means
    for _ in range(iterations):
        nearest = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").argmin(1).tolist()
        members = [[r for r, centre in enumerate(nearest) if centre == j] for j in range(num_landmarks)]
        centres = torch.stack([x[own].mean(0) if own else means[j] for j, own in enumerate(members)])
    return centres


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep_BN: Tensor | None = None,
    *,
    num_landmarks: int,
    iterations: int | None = 6,
    landmarks: Callable[[Tensor, int], Tensor] = segment_means,
) -> Tensor:
    """Eq. 15 among the valid tokens of each row, exact where a row has at most M of them.

    Args:
        landmarks: from tokens (n, D) and M, the landmarks (M, D).
        iterations: of eq. 14; None takes `torch.linalg.pinv` (eq. 13).
    """

    def attend(qs: Tensor, ks: Tensor, vs: Tensor) -> Tensor:
        if len(qs) <= num_landmarks:
            return softmax_matrix(qs, ks) @ vs
        ql, kl = landmarks(qs, num_landmarks), landmarks(ks, num_landmarks)
        a = softmax_matrix(ql, kl)
        z = torch.linalg.pinv(a) if iterations is None else pseudo_inverse_steps(a, iterations)
        return softmax_matrix(qs, kl) @ z @ softmax_matrix(ql, ks) @ vs

    return per_row(attend, q, k, v, keep_BN)
