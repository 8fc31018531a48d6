"""Landmarks by k-means: centres of a head's tokens, by Lloyd's iterations from the means over segments.

Shapes: B batch, H heads, N tokens, M centres, D head dim.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nystromformer.attention.decisions import decided
from nystromformer.attention.tracing import is_transforming


def lloyd_centres(x_BHND: Tensor, means_BHMD: Tensor, keep_BN: Tensor | None, iterations: int) -> Tensor:
    """Centres (B, H, M, D) of the valid tokens, each the mean of those that were nearest to it before.

    A centre that no token is nearest to is its segment's mean again. To which centre a token belongs has no gradient;
    the means of the last iteration have theirs.

    Args:
        x_BHND: zero where tokens do not count.
        means_BHMD: where the iterations start, float32 or wider.
        keep_BN: which tokens count; None: all.
        iterations: how often each token goes to its nearest centre; at least 1.
    """
    x = x_BHND.to(torch.promote_types(x_BHND.dtype, torch.float32))
    with torch.no_grad():
        centres = means_BHMD
        for _ in range(iterations - 1):
            centres = _means(x, _nearest(x, centres, keep_BN), means_BHMD)
        # Which of two centres is nearer, the last digit may decide.
        clusters_BHN = decided(lambda: _nearest(x, centres, keep_BN).int()).long()
    return _means(x, clusters_BHN, means_BHMD)


def _nearest(x_BHND: Tensor, centres_BHMD: Tensor, keep_BN: Tensor | None) -> Tensor:
    """(B, H, N): each token's nearest centre, the first of equals; M for tokens that do not count."""
    # ‖x − c‖² = ‖x‖² − 2 (x·c − ‖c‖²/2), and ‖x‖² is the same for all centres.
    closeness_BHNM = x_BHND @ centres_BHMD.mT - centres_BHMD.square().sum(-1)[:, :, None] / 2
    nearest_BHN = closeness_BHNM.argmax(-1)
    return nearest_BHN if keep_BN is None else nearest_BHN.where(keep_BN[:, None], centres_BHMD.shape[2])


def _means(x_BHND: Tensor, cluster_BHN: Tensor, otherwise_BHMD: Tensor) -> Tensor:
    centres_M1 = torch.arange(otherwise_BHMD.shape[2], device=x_BHND.device)[:, None]
    members_BHMN = (cluster_BHN[:, :, None] == centres_M1).to(x_BHND.dtype)
    plain = is_transforming()
    sums_BHMD = members_BHMN @ x_BHND if plain else _ClusterSums.apply(x_BHND, cluster_BHN, members_BHMN)
    counts_BHM1 = members_BHMN.sum(-1, keepdim=True)
    return torch.where(counts_BHM1 > 0, sums_BHMD / counts_BHM1.clamp(min=1), otherwise_BHMD)


class _ClusterSums(torch.autograd.Function):
    """The sums of each cluster's tokens, as a product: its order is fixed on every device, as that of additions into a
    table is not. The backward reads by index, so that nothing of N x M stays.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cluster: Tensor, members: Tensor) -> Tensor:
        ctx.save_for_backward(cluster)
        return members @ x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHMD: Tensor) -> tuple[Tensor, None, None]:
        (cluster_BHN,) = ctx.saved_tensors
        with_zeros = F.pad(grad_BHMD, (0, 0, 0, 1))
        index = cluster_BHN[..., None].expand(-1, -1, -1, grad_BHMD.shape[3])
        return with_zeros.gather(2, index), None, None
