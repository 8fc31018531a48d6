"""Triton kernels of the backward pass, which computes all weights again.

Shapes: as in forward.py. `d_x` is the loss' gradient with respect to x.
"""

import triton
import triton.language as tl

from nystromformer.attention.kernels.forward import (
    are_kept,
    convolve,
    inner_terms,
    inverse_start,
    landmark_places,
    landmark_softmax,
    load_bands,
    load_tokens,
    place,
    token_offsets,
    token_scores,
    used_landmarks,
)


@triton.jit
def from_landmarks(
    gradient_ptr, ids_ptr, counts_ptr, tokens, kept, pid_bh, row, N,
    M: tl.constexpr, D: tl.constexpr, AVERAGED: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """What a gradient of landmarks, (M, D), gives each token, (tokens, D): its segment's, divided by the tokens of the
    segment where AVERAGED. Neighbours read the same rows, which stay in the cache."""
    if HAS_MASK:
        segments = tl.load(ids_ptr + row.to(tl.int64) * N + tokens, mask=kept, other=0)
    else:
        segments = tl.where(kept, (tokens.to(tl.int64) * M // N).to(tl.int32), 0)
    places = gradient_ptr + (pid_bh.to(tl.int64) * M + segments[:, None]) * D + tl.arange(0, D)[None, :]
    gradient = tl.load(places, mask=kept[:, None], other=0.0)
    if AVERAGED:
        if HAS_MASK:
            counts = tl.load(counts_ptr + row * M + segments, mask=kept, other=1)
        else:
            counts = ((segments + 1) * N + M - 1) // M - (segments * N + M - 1) // M
        gradient = gradient / tl.maximum(counts, 1).to(tl.float32)[:, None]
    return gradient


@triton.jit
def score_gradient(weights, d_weights):
    """Through a softmax over the last dimension."""
    return weights * (d_weights - tl.sum(weights * d_weights, 1)[:, None])


@triton.jit
def token_gradients(q, d_out, k_landmarks, values, used, scale, PRECISION: tl.constexpr):
    """softmax(QK̃ᵀ/√D) of a block of tokens, and the gradient of its scores, both (tokens, M)."""
    scores = token_scores(q, k_landmarks, used, scale, PRECISION)
    d_weights = tl.dot(d_out, tl.trans(values), input_precision=PRECISION)
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    return weights, score_gradient(weights, d_weights)


@triton.jit
def output_sums_kernel(
    q_ptr, d_out_ptr, keep_ptr, counts_ptr, k_landmarks_ptr, values_ptr, d_values_ptr, d_k_landmarks_ptr,
    q_stride_b, q_stride_h, q_stride_n, o_stride_b, o_stride_h, o_stride_n, H, N, tokens_of_split, scale, root,
    M: tl.constexpr, D: tl.constexpr, S, BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Parts of d_W and of d_K̃ that a split's outputs give. Reads Q and d_out."""
    split, pid_bh = place(S)
    row = pid_bh // H
    landmarks, places = landmark_places(pid_bh, M, D)
    q_base = q_ptr + token_offsets(pid_bh, H, q_stride_b, q_stride_h)
    o_base = d_out_ptr + token_offsets(pid_bh, H, o_stride_b, o_stride_h)
    k_landmarks = tl.load(k_landmarks_ptr + places).to(q_ptr.dtype.element_ty)
    values = tl.load(values_ptr + places).to(q_ptr.dtype.element_ty)
    used = used_landmarks(counts_ptr, row, landmarks, M, HAS_MASK)
    d_values = tl.zeros((M, D), dtype=tl.float32)
    d_k_landmarks = tl.zeros((M, D), dtype=tl.float32)
    start = split * tokens_of_split
    end = tl.minimum(start + tokens_of_split, N)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        q = load_tokens(q_base, tokens, kept, q_stride_n, D)
        d_out = load_tokens(o_base, tokens, kept, o_stride_n, D)
        weights, d_scores = token_gradients(q, d_out, k_landmarks, values, used, scale, PRECISION)
        d_values = tl.dot(tl.trans(weights.to(d_out.dtype)), d_out, d_values, input_precision=PRECISION)
        d_k_landmarks = tl.dot(tl.trans(d_scores.to(q.dtype)), q, d_k_landmarks, input_precision=PRECISION)
    part = ((pid_bh.to(tl.int64) * S + split) * M + landmarks[:, None]) * D + tl.arange(0, D)[None, :]
    tl.store(d_values_ptr + part, d_values)
    tl.store(d_k_landmarks_ptr + part, d_k_landmarks * root)


@triton.jit
def landmark_gradients_kernel(
    q_landmarks_ptr, k_landmarks_ptr, context_ptr, counts_ptr, lengths_ptr, kept_ptr,
    d_values_ptr, d_k_outputs_ptr, d_context_ptr, d_own_ptr, row_sums_ptr, d_q_landmarks_ptr, d_k_landmarks_ptr,
    H, scale, root,
    M: tl.constexpr, D: tl.constexpr, ITERATIONS: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through W = Z T, the iterations of eq. 14 and A, for one head.

    The iterations run again and keep Z and A Z of each in `kept_ptr`, (B·H, 2 ITERATIONS, M, M).
    Writes d_T and the sums over its rows of d_T · T; d_W where W is V at the row's own tokens; d_Q̃ through A; d_K̃
    through A plus `d_k_outputs_ptr`'s.
    """
    pid_bh = tl.program_id(0)
    row = pid_bh // H
    landmarks, tile = landmark_places(pid_bh, M, D)
    head = pid_bh.to(tl.int64) * M
    square = landmarks[:, None] * M + landmarks[None, :]
    kept_base = kept_ptr + head * (2 * ITERATIONS * M)
    q_landmarks, k_landmarks = tl.load(q_landmarks_ptr + tile), tl.load(k_landmarks_ptr + tile)
    used = used_landmarks(counts_ptr, row, landmarks, M, HAS_MASK)
    a = landmark_softmax(q_landmarks, k_landmarks, used, scale, PRECISION)
    z = inverse_start(a)
    for i in range(ITERATIONS):
        az = tl.dot(a, z, input_precision=PRECISION)
        tl.store(kept_base + (2 * i) * M * M + square, z)
        tl.store(kept_base + (2 * i + 1) * M * M + square, az)
        _, outer = inner_terms(az, PRECISION)
        z = 3.25 * z - 0.25 * tl.dot(z, outer, input_precision=PRECISION)

    context, d_values = tl.load(context_ptr + tile), tl.load(d_values_ptr + tile)
    if HAS_MASK:
        is_exact = tl.load(lengths_ptr + row) <= M
        tl.store(d_own_ptr + tile, tl.where(is_exact, d_values, 0.0))
        d_values = tl.where(is_exact, 0.0, d_values)
    d_context = tl.dot(tl.trans(z), d_values, input_precision=PRECISION)
    tl.store(d_context_ptr + tile, d_context)
    tl.store(row_sums_ptr + head + landmarks, tl.sum(d_context * context, 1))

    d_z = tl.dot(d_values, tl.trans(context), input_precision=PRECISION)
    d_a = tl.zeros((M, M), dtype=tl.float32)
    tl.debug_barrier()  # threads read what others kept
    for i in range(ITERATIONS):
        last = ITERATIONS - 1 - i
        z = tl.load(kept_base + (2 * last) * M * M + square)
        az = tl.load(kept_base + (2 * last + 1) * M * M + square)
        inner, outer = inner_terms(az, PRECISION)
        d_outer = -0.25 * tl.dot(tl.trans(z), d_z, input_precision=PRECISION)
        d_z = 3.25 * d_z - 0.25 * tl.dot(d_z, tl.trans(outer), input_precision=PRECISION)
        d_inner = -tl.dot(tl.trans(az), d_outer, input_precision=PRECISION)
        d_az = 15.0 * d_outer - tl.dot(d_outer, tl.trans(inner), input_precision=PRECISION)
        d_az += 7.0 * d_inner - tl.dot(d_inner, tl.trans(az), input_precision=PRECISION)
        d_az -= tl.dot(tl.trans(az), d_inner, input_precision=PRECISION)
        d_a += tl.dot(d_az, tl.trans(z), input_precision=PRECISION)
        d_z += tl.dot(tl.trans(a), d_az, input_precision=PRECISION)

    # The start, Aᵀ / (‖A‖₁‖A‖∞). The rows of A sum to one whatever its scores are, so that ‖A‖∞ has no gradient.
    columns = tl.sum(a, 0)
    highest = tl.max(columns, 0)
    norm = highest * tl.max(tl.sum(a, 1), 0)
    d_a += tl.trans(d_z) / norm
    d_norm = -tl.sum(tl.sum(d_z * tl.trans(a), 1), 0) / (norm * norm)
    is_highest = columns == highest
    d_column = d_norm * tl.max(tl.sum(a, 1), 0) / tl.sum(is_highest.to(tl.float32), 0)
    d_a += tl.where(is_highest, d_column, 0.0)[None, :]
    d_scores = score_gradient(a, d_a) * root
    tl.store(d_q_landmarks_ptr + tile, tl.dot(d_scores, k_landmarks, input_precision=PRECISION))
    d_k_landmarks = tl.dot(tl.trans(d_scores), q_landmarks, input_precision=PRECISION)
    tl.store(d_k_landmarks_ptr + tile, d_k_landmarks + tl.load(d_k_outputs_ptr + tile))


@triton.jit
def key_value_gradients_kernel(
    k_ptr, v_ptr, d_out_ptr, keep_ptr, ids_ptr, counts_ptr, bands_ptr,
    q_landmarks_ptr, log_sum_ptr, d_context_ptr, d_own_ptr, row_sums_ptr, d_k_landmarks_ptr,
    d_k_ptr, d_v_ptr, d_q_landmarks_ptr,
    k_stride_b, k_stride_h, k_stride_n, v_stride_b, v_stride_h, v_stride_n, o_stride_b, o_stride_h, o_stride_n,
    g_stride_b, g_stride_h, g_stride_n, H, N, tokens_of_split, scale, root,
    M: tl.constexpr, D: tl.constexpr, K: tl.constexpr, S, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_K and d_V of a split's tokens, and its part of d_Q̃ through softmax(Q̃Kᵀ). Reads K, V, d_out, writes two."""
    split, pid_bh = place(S)
    row, head = pid_bh // H, pid_bh % H
    dims = tl.arange(0, D)
    landmarks, places = landmark_places(pid_bh, M, D)
    k_base = k_ptr + token_offsets(pid_bh, H, k_stride_b, k_stride_h)
    v_base = v_ptr + token_offsets(pid_bh, H, v_stride_b, v_stride_h)
    o_base = d_out_ptr + token_offsets(pid_bh, H, o_stride_b, o_stride_h)
    g_offset = token_offsets(pid_bh, H, g_stride_b, g_stride_h)
    q_landmarks = tl.load(q_landmarks_ptr + places).to(k_ptr.dtype.element_ty)
    d_context = tl.load(d_context_ptr + places).to(k_ptr.dtype.element_ty)
    log_sum = tl.load(log_sum_ptr + pid_bh.to(tl.int64) * M + landmarks)
    row_sums = tl.load(row_sums_ptr + pid_bh.to(tl.int64) * M + landmarks)
    d_q_landmarks = tl.zeros((M, D), dtype=tl.float32)
    if K > 0:
        bands = load_bands(bands_ptr, head, K, BLOCK, CHUNK)
    start = split * tokens_of_split
    end = tl.minimum(start + tokens_of_split, N)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        k = load_tokens(k_base, tokens, kept, k_stride_n, D)
        v = load_tokens(v_base, tokens, kept, v_stride_n, D)
        scores = tl.dot(k, tl.trans(q_landmarks), input_precision=PRECISION) * scale
        weights = tl.where(kept[:, None], tl.exp2(scores - log_sum[None, :]), 0.0)
        d_v = tl.dot(weights.to(v.dtype), d_context, input_precision=PRECISION)
        if HAS_MASK:
            d_v += from_landmarks(d_own_ptr, ids_ptr, counts_ptr, tokens, kept, pid_bh, row, N, M, D, False, HAS_MASK)
        if K > 0:
            d_v = convolve(
                d_v, o_base, keep_ptr, bands, row, begin, o_stride_n, N, D, K, BLOCK, CHUNK, HAS_MASK, PRECISION
            )
        d_weights = tl.dot(v, tl.trans(d_context), input_precision=PRECISION)
        d_scores = (weights * (d_weights - row_sums[None, :])).to(k.dtype)
        d_q_landmarks = tl.dot(tl.trans(d_scores), k, d_q_landmarks, input_precision=PRECISION)
        d_k = tl.dot(d_scores, q_landmarks, input_precision=PRECISION) * root
        outputs = g_offset + tokens.to(tl.int64)[:, None] * g_stride_n + dims[None, :]
        inside = (tokens < end)[:, None]
        d_k += from_landmarks(
            d_k_landmarks_ptr, ids_ptr, counts_ptr, tokens, kept, pid_bh, row, N, M, D, True, HAS_MASK
        )
        tl.store(d_k_ptr + outputs, tl.where(kept[:, None], d_k, 0.0).to(d_k_ptr.dtype.element_ty), mask=inside)
        tl.store(d_v_ptr + outputs, tl.where(kept[:, None], d_v, 0.0).to(d_v_ptr.dtype.element_ty), mask=inside)
    part = ((pid_bh.to(tl.int64) * S + split) * M + landmarks[:, None]) * D + dims[None, :]
    tl.store(d_q_landmarks_ptr + part, d_q_landmarks * root)


@triton.jit
def query_gradients_kernel(
    q_ptr, d_out_ptr, keep_ptr, ids_ptr, counts_ptr, k_landmarks_ptr, values_ptr, d_q_landmarks_ptr, d_q_ptr,
    q_stride_b, q_stride_h, q_stride_n, o_stride_b, o_stride_h, o_stride_n, g_stride_b, g_stride_h, g_stride_n,
    H, N, scale, root,
    M: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_Q of a block of tokens: through its own weights, and as a part of its landmark. Reads Q and d_out, writes."""
    block, pid_bh = place(tl.cdiv(N, BLOCK))
    row = pid_bh // H
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    kept = are_kept(keep_ptr, row, tokens, tokens < N, N, HAS_MASK)
    q = load_tokens(q_ptr + token_offsets(pid_bh, H, q_stride_b, q_stride_h), tokens, kept, q_stride_n, D)
    d_out = load_tokens(d_out_ptr + token_offsets(pid_bh, H, o_stride_b, o_stride_h), tokens, kept, o_stride_n, D)
    landmarks, places = landmark_places(pid_bh, M, D)
    used = used_landmarks(counts_ptr, row, landmarks, M, HAS_MASK)
    k_landmarks, values = tl.load(k_landmarks_ptr + places).to(q.dtype), tl.load(values_ptr + places).to(q.dtype)
    _, d_scores = token_gradients(q, d_out, k_landmarks, values, used, scale, PRECISION)
    d_q = tl.dot(d_scores.to(q.dtype), k_landmarks, input_precision=PRECISION) * root
    d_q += from_landmarks(d_q_landmarks_ptr, ids_ptr, counts_ptr, tokens, kept, pid_bh, row, N, M, D, True, HAS_MASK)
    outputs = token_offsets(pid_bh, H, g_stride_b, g_stride_h) + tokens.to(tl.int64)[:, None] * g_stride_n
    d_q = tl.where(kept[:, None], d_q, 0.0).to(d_q_ptr.dtype.element_ty)
    tl.store(d_q_ptr + outputs + tl.arange(0, D)[None, :], d_q, mask=(tokens < N)[:, None])


@triton.jit
def weight_gradient_kernel(
    v_ptr, d_out_ptr, keep_ptr, products_ptr,
    v_stride_b, v_stride_h, v_stride_n, o_stride_b, o_stride_h, o_stride_n, H, N, tokens_of_split,
    D: tl.constexpr, K: tl.constexpr, S, BLOCK: tl.constexpr, WINDOW: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products of each token's d_out with the WINDOW tokens of V from K // 2 before its block on, summed over a
    split's blocks: their diagonals hold the sums for the taps. Reads V and d_out once."""
    split, pid_bh = place(S)
    row = pid_bh // H
    v_base = v_ptr + token_offsets(pid_bh, H, v_stride_b, v_stride_h)
    o_base = d_out_ptr + token_offsets(pid_bh, H, o_stride_b, o_stride_h)
    products = tl.zeros((BLOCK, WINDOW), dtype=tl.float32)
    start = split * tokens_of_split
    end = tl.minimum(start + tokens_of_split, N)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        others = begin - K // 2 + tl.arange(0, WINDOW)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        seen = are_kept(keep_ptr, row, others, (others >= 0) & (others < N), N, HAS_MASK)
        d_out = load_tokens(o_base, tokens, kept, o_stride_n, D)
        v = load_tokens(v_base, others, seen, v_stride_n, D)
        products = tl.dot(d_out, tl.trans(v), products, input_precision=PRECISION)
    i, j = tl.arange(0, BLOCK), tl.arange(0, WINDOW)
    places = ((pid_bh.to(tl.int64) * S + split) * BLOCK + i[:, None]) * WINDOW + j[None, :]
    tl.store(products_ptr + places, products)
