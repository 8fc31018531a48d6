"""The kernels as one operator of PyTorch, with its gradient: what `torch.compile` and autograd see.

Shapes: as in forward.py.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
import triton
from torch import Tensor

from nystromformer.attention.kernels import backward as bwd
from nystromformer.attention.kernels import forward as fwd
from nystromformer.attention.kernels.plan import Plan, make_plan, room

_PRECISION = "tf32x3"
"""Of products of float32 numbers among tokens: as exact as float32's own. Those of 16-bit numbers are exact anyway."""
P = ParamSpec("P")
R = TypeVar("R")
_FORWARD, _BACKWARD = "nystromformer::nystrom_attention", "nystromformer::nystrom_attention_backward"


def _plan(q: Tensor, M: int, K: int) -> Plan:
    B, H, N, D = q.shape
    return make_plan(max(1, B * H), max(1, N), M, D, K, q.element_size(), room(q.device))


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _rows_of_numbers(x: Tensor) -> Tensor:
    """With neighbouring numbers of a head: any other strides serve."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _packed(*tensors: Tensor | None) -> Iterator[Tensor | None]:
    """Without gaps, as the kernels read them: a mask may be a view of a wider one, or one row for all."""
    return (None if x is None else x.contiguous() for x in tensors)


def _on_its_device(operator: Callable[P, R]) -> Callable[P, R]:
    """Run on the first tensor's device, which need not be the current one, and without autocast, which would take 16
    bits for products of landmarks' matrices."""

    @functools.wraps(operator)
    def run(*args: P.args, **options: P.kwargs) -> R:
        x = args[0]
        assert isinstance(x, Tensor)
        with torch.cuda.device_of(x), torch.autocast(x.device.type, enabled=False):
            return operator(*args, **options)

    return run


def _like_projections(x: Tensor) -> Tensor:
    """Memory for (B, H, N, D) in the order in which the layers' projections give and take it, (B, N, H, D)."""
    B, H, N, D = x.shape
    return torch.empty(B, N, H, D, dtype=x.dtype, device=x.device).transpose(1, 2)


def _scales(D: int) -> tuple[float, float]:
    """1/√D in units of log2, for exp2, and 1/√D."""
    root = D**-0.5
    return root * math.log2(math.e), root


def _bands(weight: Tensor | None, dtype: torch.dtype, block: int, chunk: int, is_flipped: bool) -> Tensor | None:
    """The filter as matrices that are multiplied with a block's neighbours, the same ones for every block."""
    if weight is None:
        return None
    H, _, K, _ = weight.shape
    chunks = triton.cdiv(block + K - 1, chunk)
    bands = torch.empty(H, block, chunks * chunk, dtype=dtype, device=weight.device)
    fwd.bands_kernel[(chunks * H,)](weight, bands, K=K, BLOCK=block, CHUNK=chunk, FLIPPED=is_flipped)
    return bands


@torch.library.custom_op(_FORWARD, mutates_args=())
@_on_its_device
def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    bounds: Tensor | None,
    counts: Tensor | None,
    lengths: Tensor | None,
    first: Tensor | None,
    ids: Tensor | None,
    weight: Tensor | None,
    num_landmarks: int,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """softmax(QK̃ᵀ) Z softmax(Q̃Kᵀ) V + conv(V) of masked rows: the whole of `NystromAttention.forward`, (B, H, N, D).

    Args:
        q, k, v: (B, H, N, D), N > M; masked positions may hold anything.
        keep, bounds, counts, lengths, first, ids: the mask and its `Ranges`, or None.
        weight: (H, 1, K, 1), the convolution's filter.
        iterations: of eq. 14.

    Returns:
        The output, and what the backward pass needs: Q̃, K̃, T, the log2 of T's sums and W.
    """
    q, k, v = (_rows_of_numbers(x) for x in (q, k, v))
    keep, bounds, counts, lengths, first, weight = _packed(keep, bounds, counts, lengths, first, weight)
    B, H, N, D = q.shape
    M, K = num_landmarks, 0 if weight is None else weight.shape[2]
    plan, (scale, _) = _plan(q, M, K), _scales(D)
    out = _like_projections(q)
    small: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
    q_landmarks, k_landmarks, context, values = (torch.empty(B, H, M, D, **small) for _ in range(4))
    log_sum = torch.empty(B, H, M, **small)
    part = torch.empty(B, H, plan.parts, M, D, **small)
    part_max, part_sum = (torch.empty(B, H, plan.parts, M, **small) for _ in range(2))
    if not out.numel():
        return out, q_landmarks, k_landmarks, context, log_sum, values
    flags: dict[str, Any] = {"HAS_MASK": keep is not None, "PRECISION": _PRECISION}
    split = {"M": M, "D": D, "G": plan.segments, "BLOCK": plan.block, **flags}
    split |= {"num_warps": plan.warps, "num_stages": plan.key_stages}
    fwd.query_landmarks_kernel[(plan.parts * B * H,)](q, keep, bounds, counts, q_landmarks, *_strides(q), H, N, **split)
    fwd.keys_kernel[(plan.parts * B * H,)](
        *(k, v, keep, bounds, counts, q_landmarks, k_landmarks, part, part_max, part_sum),
        *(*_strides(k), *_strides(v), H, N, scale),
        S=plan.parts,
        **split,
    )
    fwd.landmark_system_kernel[(B * H,)](
        *(q_landmarks, k_landmarks, part, part_max, part_sum, v, counts, lengths, first),
        *(context, log_sum, values, *_strides(v), H, scale),
        M=M,
        D=D,
        S=plan.parts,
        ITERATIONS=iterations,
        HAS_MASK=keep is not None,
        PRECISION=plan.system_precision,
        num_warps=4 if M == 32 else 8,
        num_stages=2,
    )
    bands = _bands(weight, q.dtype, plan.output_block, plan.chunk, is_flipped=False)
    splits = triton.cdiv(N, plan.output_tokens)
    cut = {"M": M, "D": D, "K": K, "S": splits, "BLOCK": plan.output_block, "CHUNK": plan.chunk}
    fwd.output_kernel[(splits * B * H,)](
        *(q, v, keep, counts, k_landmarks, values, bands, out),
        *(*_strides(q), *_strides(v), *_strides(out), H, N, plan.output_tokens, scale),
        **cut,
        **flags,
        num_warps=plan.warps,
        num_stages=plan.output_stages,
    )
    return out, q_landmarks, k_landmarks, context, log_sum, values


@torch.library.custom_op(_BACKWARD, mutates_args=())
@_on_its_device
def nystrom_attention_backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor | None,
    ids: Tensor | None,
    counts: Tensor | None,
    lengths: Tensor | None,
    weight: Tensor | None,
    q_landmarks: Tensor,
    k_landmarks: Tensor,
    context: Tensor,
    log_sum: Tensor,
    values: Tensor,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of Q, K, V and of the filter (of no element where there is none)."""
    d_out, q, k, v = (_rows_of_numbers(x) for x in (d_out, q, k, v))
    keep, ids, counts, lengths, weight = _packed(keep, ids, counts, lengths, weight)
    B, H, N, D = q.shape
    M, K = q_landmarks.shape[2], 0 if weight is None else weight.shape[2]
    plan, (scale, root) = _plan(q, M, K), _scales(D)
    d_q, d_k, d_v = (_like_projections(q) for _ in range(3))
    small: dict[str, Any] = {"dtype": torch.float32, "device": q.device}
    if not q.numel():
        return d_q, d_k, d_v, torch.zeros(0 if weight is None else weight.shape, **small)
    flags: dict[str, Any] = {"HAS_MASK": keep is not None, "PRECISION": _PRECISION}
    cut = {"M": M, "D": D, "BLOCK": plan.gradient_block}
    cut |= {"num_warps": 8, "num_stages": plan.gradient_stages, **flags}
    sums = torch.empty(2, B, H, plan.splits, M, D, **small)
    bwd.output_sums_kernel[(plan.splits * B * H,)](
        *(q, d_out, keep, counts, k_landmarks, values, *sums),
        *(*_strides(q), *_strides(d_out), H, N, plan.tokens_of_split, scale, root),
        S=plan.splits,
        **cut,
    )
    d_values, d_k_outputs = _over_splits(sums)
    kept = torch.empty(B * H, 2 * iterations, M, M, **small)
    d_context, d_own, d_q_landmarks, d_k_landmarks = (torch.empty_like(context) for _ in range(4))
    row_sums = torch.empty(B, H, M, **small)
    bwd.landmark_gradients_kernel[(B * H,)](
        *(q_landmarks, k_landmarks, context, counts, lengths, kept, d_values, d_k_outputs),
        *(d_context, d_own, row_sums, d_q_landmarks, d_k_landmarks, H, scale, root),
        M=M,
        D=D,
        ITERATIONS=iterations,
        HAS_MASK=counts is not None,
        PRECISION=plan.system_precision,
        num_warps=4,
        num_stages=1,
    )
    d_q_parts = torch.empty(B, H, plan.splits, M, D, **small)
    bands = _bands(weight, q.dtype, plan.gradient_block, plan.chunk, is_flipped=True)
    bwd.key_value_gradients_kernel[(plan.splits * B * H,)](
        *(k, v, d_out, keep, ids, counts, bands, q_landmarks, log_sum, d_context, d_own, row_sums, d_k_landmarks),
        *(d_k, d_v, d_q_parts, *_strides(k), *_strides(v), *_strides(d_out), *_strides(d_k)),
        *(H, N, plan.tokens_of_split, scale, root),
        **{"K": K, "S": plan.splits, "CHUNK": plan.chunk, **cut},
    )
    d_q_landmarks = d_q_landmarks + _over_splits(d_q_parts)
    bwd.query_gradients_kernel[(triton.cdiv(N, plan.gradient_block) * B * H,)](
        *(q, d_out, keep, ids, counts, k_landmarks, values, d_q_landmarks, d_q),
        *(*_strides(q), *_strides(d_out), *_strides(d_q), H, N, scale, root),
        **cut,
    )
    d_weight = torch.empty(0, **small) if weight is None else _weight_gradient(v, d_out, keep, K, plan)
    return d_q, d_k, d_v, d_weight


def _over_splits(parts: Tensor) -> Tensor:
    """The sum over the splits of (…, S, M, D); without a launch where there is one."""
    return parts.sum(-3) if parts.shape[-3] > 1 else parts.squeeze(-3)


def _weight_gradient(v: Tensor, d_out: Tensor, keep: Tensor | None, K: int, plan: Plan) -> Tensor:
    B, H, N, D = v.shape
    C, window = plan.taps_block, plan.taps_window
    tokens_of_split = triton.cdiv(plan.tokens_of_split, C) * C
    S = triton.cdiv(N, tokens_of_split)
    products = torch.empty(B, H, S, C, window, dtype=torch.float32, device=v.device)
    bwd.weight_gradient_kernel[(S * B * H,)](
        *(v, d_out, keep, products, *_strides(v), *_strides(d_out), H, N, tokens_of_split),
        D=D,
        K=K,
        S=S,
        BLOCK=C,
        WINDOW=window,
        HAS_MASK=keep is not None,
        PRECISION=_PRECISION,
        num_warps=8 if window > 64 else 4,
        num_stages=1 if window > 64 else 3,
    )
    diagonals = products.sum((0, 2)).as_strided((H, C, K), (C * window, window + 1, 1))
    return diagonals.sum(1).view(H, 1, K, 1)


@nystrom_attention.register_fake
def _(q: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    B, H, _, D = q.shape
    M = rest[-2]
    tile, line = (B, H, M, D), (B, H, M)
    small = [q.new_empty(shape, dtype=torch.float32) for shape in (tile, tile, tile, line, tile)]
    return _like_projections(q), *small


@nystrom_attention_backward.register_fake
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight = rest[4]
    d_weight = q.new_empty((0,) if weight is None else weight.shape, dtype=torch.float32)
    return _like_projections(q), _like_projections(k), _like_projections(v), d_weight


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, keep, _, counts, lengths, _, ids, weight, _, iterations = inputs
    _, *small = output
    ctx.save_for_backward(q, k, v, keep, ids, counts, lengths, weight, *small)
    ctx.iterations = iterations
    ctx.mark_non_differentiable(*small)


def _differentiate(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # once: tensors that are computed again come only once
    weight = saved[7]
    d_q, d_k, d_v, d_weight = nystrom_attention_backward(d_out, *saved, ctx.iterations)
    d_filter = None if weight is None else d_weight.to(weight.dtype)
    return d_q, d_k, d_v, None, None, None, None, None, None, d_filter, None, None


nystrom_attention.register_autograd(_differentiate, setup_context=_setup)
