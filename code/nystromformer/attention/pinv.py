"""The iterative Moore-Penrose inverse of Lemma 1 (eq. 14; Razavi et al. 2014).

Shapes: … any leading dims, M landmarks.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from nystromformer.attention.tracing import once_differentiable, without_autocast

PinvStart = Literal["matrix", "batch"]
STABLE_ITERATIONS = 12
"""That float32 takes, of whatever matrix."""


def iterative_pinv(a: Tensor, iterations: int = 6, start: PinvStart = "matrix") -> Tensor:
    """Z* of eq. 14 after a fixed number of iterations.

    Six iterations are not the pseudo-inverse of an ill-conditioned matrix: few iterations act as a regulariser, and
    the method is defined by them. The gradient is that of the iterations, not of the limit. What rounding leaves in
    directions that a singular matrix does not have grows by 13/4 in each: more than `STABLE_ITERATIONS` are computed in
    float64, whatever the matrix' own precision.

    Args:
        a: (…, M, M), float32 or float64 (16-bit iterations overflow).
        iterations: how often eq. 14 is applied.
        start: "matrix" divides Aᵀ by ‖A‖₁‖A‖∞ of each matrix; "batch" by the largest ‖A‖₁ of all matrices of the
            batch, as the authors' code does for row-stochastic A, so that results depend on the neighbours.

    Returns:
        (…, M, M).
    """
    if a.dtype in (torch.bfloat16, torch.float16):
        raise ValueError(f"the iteration overflows in 16 bits: expected float32 or float64, found {a.dtype}")
    with without_autocast(a):
        flat = a.reshape(-1, *a.shape[-2:])
        if iterations > STABLE_ITERATIONS:
            flat = flat.double()
        first = start_value(flat, start)
        z: Tensor = _Iterations.apply(flat, first, iterations)
        return z.to(a.dtype).view(a.shape)


def start_value(a: Tensor, start: PinvStart = "matrix") -> Tensor:
    """Z of the first iteration, (B, M, M) like `a`: Aᵀ divided as `iterative_pinv` says."""
    column_sums = a.abs().sum(-2)
    if start == "batch":
        # Over one dimension: ONNX's conversion knows no maximum over all.
        return a.mT / column_sums.flatten().amax(0)
    return a.mT / (column_sums.amax(-1) * a.abs().sum(-1).amax(-1))[:, None, None]


def apply_iterations(a: Tensor, z: Tensor, iterations: int) -> tuple[Tensor, list[Tensor]]:
    """Eq. 14 from Z on, (B, M, M), and what `iteration_gradients` needs: Z and A Z of each iteration."""
    kept = []
    for _ in range(iterations):
        az = torch.bmm(a, z)
        kept += [z, az]
        _, outer = _inner_terms(az)
        z = torch.baddbmm(z, z, outer, beta=3.25, alpha=-0.25)
    return z, kept


def iteration_gradients(grad_z: Tensor, a: Tensor, *kept: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of A and of the first Z; the inner terms are computed again."""
    grad_a = torch.zeros_like(a)
    for z, az in zip(kept[-2::-2], kept[::-2], strict=True):
        inner, outer = _inner_terms(az)
        grad_outer = torch.bmm(z.mT, grad_z).mul_(-0.25)
        grad_z = torch.baddbmm(grad_z, grad_z, outer.mT, beta=3.25, alpha=-0.25)
        grad_inner = torch.bmm(az.mT, grad_outer).neg_()
        grad_az = torch.baddbmm(grad_outer, grad_outer, inner.mT, beta=15, alpha=-1)
        grad_az.add_(grad_inner, alpha=7).baddbmm_(grad_inner, az.mT, alpha=-1).baddbmm_(az.mT, grad_inner, alpha=-1)
        grad_a.baddbmm_(grad_az, z.mT)
        grad_z.baddbmm_(a.mT, grad_az)
    return grad_a, grad_z


def _inner_terms(az: Tensor) -> tuple[Tensor, Tensor]:
    """AZ (7 I − AZ) and AZ (15 I − AZ (7 I − AZ)), without identity matrices."""
    inner = torch.baddbmm(az, az, az, beta=7, alpha=-1)
    return inner, torch.baddbmm(az, az, inner, beta=15, alpha=-1)


class _Iterations(torch.autograd.Function):
    """Eq. 14 as four products an iteration: Z' = ¼ (13 Z − Z · outer).

    The backward keeps two matrices per iteration and computes the inner terms again: at ordinary lengths the others
    would weigh as much as Q, K and V.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        z, kept = apply_iterations(a, z, iterations)
        ctx.save_for_backward(a, *kept)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_z: Tensor) -> tuple[Tensor, Tensor, None]:
        # A caller may run backward under autocast; the iterations stay as precise as they were forward.
        with without_autocast(grad_z):
            return *iteration_gradients(grad_z, *ctx.saved_tensors), None
