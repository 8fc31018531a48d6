"""Triton kernels of the forward pass.

Shapes: B batch, H heads, N tokens, M landmarks, D head dim, S splits of a row's segments, G segments of a split, K taps
of the convolution. One program works on one head of one row (`pid_bh`), on one split or one block of tokens, and on all
landmarks. docs/kernels.md counts what each kernel reads and writes.
"""

import triton
import triton.language as tl


@triton.jit
def place(per_head):
    """Which of a head's programs this one is, and which head's. One number for both: a grid's other dimensions end at
    65535, B·H does not."""
    pid = tl.program_id(0)
    return pid % per_head, pid // per_head


@triton.jit
def token_offsets(pid_bh, H, stride_b, stride_h):
    """Where a head of a row begins, in elements; 64 bits, because a batch may have more than 2³¹."""
    b = (pid_bh // H).to(tl.int64)
    h = (pid_bh % H).to(tl.int64)
    return b * stride_b + h * stride_h


@triton.jit
def load_tokens(base, tokens, kept, stride_n, D: tl.constexpr):
    """Rows of (N, D) at `tokens`, zeros where they are not kept: a masked token may hold anything."""
    dims = tl.arange(0, D)
    pointers = base + tokens.to(tl.int64)[:, None] * stride_n + dims[None, :]
    return tl.load(pointers, mask=kept[:, None], other=0.0)


@triton.jit
def are_kept(keep_ptr, row, tokens, inside, N, HAS_MASK: tl.constexpr):
    """Which of the tokens are inside and count."""
    if HAS_MASK:
        flags = tl.load(keep_ptr + row.to(tl.int64) * N + tokens, mask=inside, other=0)
        return inside & (flags != 0)
    return inside


@triton.jit
def segment_start(bounds_ptr, row, j, N, M: tl.constexpr, HAS_MASK: tl.constexpr):
    """First token of segment j of a row; of j = M the end of the last one."""
    if HAS_MASK:
        return tl.load(bounds_ptr + row * (M + 1) + j)
    return (j * N + M - 1) // M


@triton.jit
def segment_counts(counts_ptr, bounds_ptr, row, segments, N, M: tl.constexpr, HAS_MASK: tl.constexpr):
    """Tokens of segments that count; zero of what is no segment."""
    real = segments < M
    if HAS_MASK:
        return tl.load(counts_ptr + row * M + segments, mask=real, other=0)
    return tl.where(real, ((segments + 1) * N + M - 1) // M - (segments * N + M - 1) // M, 0)


@triton.jit
def membership(bounds_ptr, row, first, tokens, kept, N, M: tl.constexpr, G: tl.constexpr, HAS_MASK: tl.constexpr):
    """(16, tokens): one where a token counts and is in segment `first + g`; rows from G on are zero.

    16 rows, the fewest that a matrix product takes.
    """
    rows = tl.arange(0, 16)
    segments = tl.minimum(first + rows, M - 1)
    start = segment_start(bounds_ptr, row, segments, N, M, HAS_MASK)
    end = segment_start(bounds_ptr, row, segments + 1, N, M, HAS_MASK)
    within = (tokens[None, :] >= start[:, None]) & (tokens[None, :] < end[:, None])
    return within & kept[None, :] & (rows < G)[:, None]


@triton.jit
def store_means(
    out_ptr,
    sums,
    pid_bh,
    row,
    first,
    counts_ptr,
    bounds_ptr,
    N,
    M: tl.constexpr,
    D: tl.constexpr,
    G: tl.constexpr,
    HAS_MASK: tl.constexpr,
):
    """Write the means of a split's segments, (G, D) of (B·H, M, D); zero of an empty segment."""
    rows = tl.arange(0, 16)
    segments = first + rows
    counts = segment_counts(counts_ptr, bounds_ptr, row, segments, N, M, HAS_MASK)
    means = sums / tl.maximum(counts, 1).to(tl.float32)[:, None]
    pointers = out_ptr + (pid_bh.to(tl.int64) * M + segments[:, None]) * D + tl.arange(0, D)[None, :]
    tl.store(pointers, means, mask=((rows < G) & (segments < M))[:, None])


@triton.jit
def query_landmarks_kernel(
    q_ptr, keep_ptr, bounds_ptr, counts_ptr, landmarks_ptr,
    stride_b, stride_h, stride_n, H, N,
    M: tl.constexpr, D: tl.constexpr, G: tl.constexpr, BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Q̃ of a split's segments (eq. 16). Reads Q once."""
    split, pid_bh = place(M // G)
    row, first = pid_bh // H, split * G
    start = segment_start(bounds_ptr, row, first, N, M, HAS_MASK)
    end = segment_start(bounds_ptr, row, tl.minimum(first + G, M), N, M, HAS_MASK)
    base = q_ptr + token_offsets(pid_bh, H, stride_b, stride_h)
    sums = tl.zeros((16, D), dtype=tl.float32)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        x = load_tokens(base, tokens, kept, stride_n, D)
        selected = membership(bounds_ptr, row, first, tokens, kept, N, M, G, HAS_MASK)
        sums = tl.dot(selected.to(tl.float32).to(x.dtype), x, sums, input_precision=PRECISION)
    store_means(landmarks_ptr, sums, pid_bh, row, first, counts_ptr, bounds_ptr, N, M, D, G, HAS_MASK)


@triton.jit
def keys_kernel(
    k_ptr, v_ptr, keep_ptr, bounds_ptr, counts_ptr, q_landmarks_ptr,
    k_landmarks_ptr, part_ptr, part_max_ptr, part_sum_ptr,
    k_stride_b, k_stride_h, k_stride_n, v_stride_b, v_stride_h, v_stride_n, H, N, scale,
    M: tl.constexpr, D: tl.constexpr, G: tl.constexpr, S, BLOCK: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """K̃ of a split's segments, and the split's part of softmax(Q̃Kᵀ)V by an online softmax. Reads K and V once.

    Scores are in units of log2, for exp2.
    """
    split, pid_bh = place(S)
    row, first = pid_bh // H, split * G
    start = segment_start(bounds_ptr, row, first, N, M, HAS_MASK)
    end = segment_start(bounds_ptr, row, tl.minimum(first + G, M), N, M, HAS_MASK)
    k_base = k_ptr + token_offsets(pid_bh, H, k_stride_b, k_stride_h)
    v_base = v_ptr + token_offsets(pid_bh, H, v_stride_b, v_stride_h)
    landmarks, places = landmark_places(pid_bh, M, D)
    q_landmarks = tl.load(q_landmarks_ptr + places).to(k_ptr.dtype.element_ty)
    sums = tl.zeros((16, D), dtype=tl.float32)
    context = tl.zeros((M, D), dtype=tl.float32)
    highest = tl.full((M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((M,), dtype=tl.float32)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        k = load_tokens(k_base, tokens, kept, k_stride_n, D)
        v = load_tokens(v_base, tokens, kept, v_stride_n, D)
        selected = membership(bounds_ptr, row, first, tokens, kept, N, M, G, HAS_MASK)
        sums = tl.dot(selected.to(tl.float32).to(k.dtype), k, sums, input_precision=PRECISION)
        scores = tl.dot(q_landmarks, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(kept[None, :], scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        # A block of masked tokens alone has no highest score, and -inf minus -inf is no number.
        reference = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights = tl.exp2(scores - reference[:, None])
        shrink = tl.exp2(highest - reference)
        total = total * shrink + tl.sum(weights, 1)
        context = tl.dot(weights.to(v.dtype), v, context * shrink[:, None], input_precision=PRECISION)
        highest = new_highest
    store_means(k_landmarks_ptr, sums, pid_bh, row, first, counts_ptr, bounds_ptr, N, M, D, G, HAS_MASK)
    part = (pid_bh.to(tl.int64) * S + split) * M
    tl.store(part_ptr + (part + landmarks[:, None]) * D + tl.arange(0, D)[None, :], context)
    tl.store(part_max_ptr + part + landmarks, highest)
    tl.store(part_sum_ptr + part + landmarks, total)


@triton.jit
def combined_context(part_ptr, part_max_ptr, part_sum_ptr, pid_bh, M: tl.constexpr, D: tl.constexpr, S):
    """T = softmax(Q̃Kᵀ)V, (M, D), of its parts, and the log2 of the sum of exp2 of the scores, (M,)."""
    landmarks, dims = tl.arange(0, M), tl.arange(0, D)
    context = tl.zeros((M, D), dtype=tl.float32)
    highest = tl.full((M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((M,), dtype=tl.float32)
    for split in range(S):
        part = (pid_bh.to(tl.int64) * S + split) * M
        part_highest = tl.load(part_max_ptr + part + landmarks)
        new_highest = tl.maximum(highest, part_highest)
        reference = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        shrink, grow = tl.exp2(highest - reference), tl.exp2(part_highest - reference)
        total = total * shrink + tl.load(part_sum_ptr + part + landmarks) * grow
        part_context = tl.load(part_ptr + (part + landmarks[:, None]) * D + dims[None, :])
        context = context * shrink[:, None] + part_context * grow[:, None]
        highest = new_highest
    # A row without any token that counts has no sum: its context is zero, and so is its output.
    is_empty = total == 0.0
    context = tl.where(is_empty[:, None], 0.0, context / tl.where(is_empty, 1.0, total)[:, None])
    return context, tl.where(is_empty, float("inf"), highest + tl.log2(tl.where(is_empty, 1.0, total)))


@triton.jit
def landmark_softmax(q_landmarks, k_landmarks, used, scale, PRECISION: tl.constexpr):
    """A = softmax(Q̃K̃ᵀ/√D), (M, M); zero columns at landmarks of empty segments."""
    scores = tl.dot(q_landmarks, tl.trans(k_landmarks), input_precision=PRECISION) * scale
    scores = tl.where(used[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def used_landmarks(counts_ptr, row, landmarks, M: tl.constexpr, HAS_MASK: tl.constexpr):
    """Which of the landmarks stand for tokens; the first one of a row that has none, so that a softmax has one.

    A row's used landmarks are its first ones.
    """
    if HAS_MASK:
        length = tl.sum(tl.load(counts_ptr + row * M + tl.arange(0, M)), 0)
        return (tl.load(counts_ptr + row * M + landmarks) > 0) | ((landmarks == 0) & (length == 0))
    return landmarks >= 0


@triton.jit
def inverse_start(a):
    """Aᵀ / (‖A‖₁‖A‖∞)."""
    norm = tl.max(tl.sum(tl.abs(a), 0), 0) * tl.max(tl.sum(tl.abs(a), 1), 0)
    return tl.trans(a) / norm


@triton.jit
def inner_terms(az, PRECISION: tl.constexpr):
    """AZ (7 I - AZ) and AZ (15 I - AZ (7 I - AZ))."""
    inner = 7.0 * az - tl.dot(az, az, input_precision=PRECISION)
    return inner, 15.0 * az - tl.dot(az, inner, input_precision=PRECISION)


@triton.jit
def landmark_system_kernel(
    q_landmarks_ptr, k_landmarks_ptr, part_ptr, part_max_ptr, part_sum_ptr, v_ptr, counts_ptr, lengths_ptr, first_ptr,
    context_ptr, log_sum_ptr, values_ptr,
    v_stride_b, v_stride_h, v_stride_n, H, scale,
    M: tl.constexpr, D: tl.constexpr, S, ITERATIONS: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """T of its parts, A, its iterative inverse (eq. 14) and W = Z T, all within the chip.

    W of a row that gets exact attention is V at the row's tokens.
    """
    pid_bh = tl.program_id(0)
    row = pid_bh // H
    landmarks, tile = landmark_places(pid_bh, M, D)
    context, log_sum = combined_context(part_ptr, part_max_ptr, part_sum_ptr, pid_bh, M, D, S)
    tl.store(context_ptr + tile, context)
    tl.store(log_sum_ptr + pid_bh.to(tl.int64) * M + landmarks, log_sum)
    used = used_landmarks(counts_ptr, row, landmarks, M, HAS_MASK)
    a = landmark_softmax(tl.load(q_landmarks_ptr + tile), tl.load(k_landmarks_ptr + tile), used, scale, PRECISION)
    z = inverse_start(a)
    for _ in range(ITERATIONS):
        az = tl.dot(a, z, input_precision=PRECISION)
        _, outer = inner_terms(az, PRECISION)
        z = 3.25 * z - 0.25 * tl.dot(z, outer, input_precision=PRECISION)
    values = tl.dot(z, context, input_precision=PRECISION)
    if HAS_MASK:
        length = tl.load(lengths_ptr + row)
        tokens = tl.load(first_ptr + row * M + landmarks)
        base = v_ptr + token_offsets(pid_bh, H, v_stride_b, v_stride_h)
        own = load_tokens(base, tokens, landmarks < length, v_stride_n, D).to(tl.float32)
        values = tl.where(length <= M, own, values)
    tl.store(values_ptr + tile, values)


@triton.jit
def bands_kernel(
    weight_ptr, bands_ptr, K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, FLIPPED: tl.constexpr
):  # fmt: skip
    """A CHUNK of columns of (H, BLOCK, neighbours): the tap with which a block's token sees each token from K // 2
    before the block on, zero beyond the filter.

    FLIPPED: the taps with which the convolution's gradient sees it.
    """
    CHUNKS: tl.constexpr = (BLOCK + K + CHUNK - 2) // CHUNK  # of constants `tl.cdiv` makes none in Triton 3.6
    chunk, head = place(CHUNKS)
    rows, columns = tl.arange(0, BLOCK), chunk * CHUNK + tl.arange(0, CHUNK)
    distance = columns[None, :] - rows[:, None]
    taps = (K - 1 - distance) if FLIPPED else distance
    values = tl.load(weight_ptr + head.to(tl.int64) * K + taps, mask=(taps >= 0) & (taps < K), other=0.0)
    places = (head.to(tl.int64) * BLOCK + rows[:, None]) * (CHUNKS * CHUNK) + columns[None, :]
    tl.store(bands_ptr + places, values.to(bands_ptr.dtype.element_ty))


@triton.jit
def load_bands(bands_ptr, head, K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """A head's bands, (BLOCK, CHUNK) each, that `convolve` takes."""
    CHUNKS: tl.constexpr = (BLOCK + K + CHUNK - 2) // CHUNK
    rows, columns = tl.arange(0, BLOCK), tl.arange(0, CHUNK)
    places = bands_ptr + (head.to(tl.int64) * BLOCK + rows[:, None]) * (CHUNKS * CHUNK) + columns[None, :]
    bands = ()
    for i in tl.static_range(CHUNKS):
        bands = bands + (tl.load(places + i * CHUNK),)  # noqa: RUF005 (Triton has no other way)
    return bands


@triton.jit
def convolve(
    total, x_base, keep_ptr, bands, row, begin, stride_n, N,
    D: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`total` plus the convolution at the tokens of a block from `begin` on, as products with bands of the filter."""
    for i in tl.static_range((BLOCK + K + CHUNK - 2) // CHUNK):
        others = begin - K // 2 + i * CHUNK + tl.arange(0, CHUNK)
        kept = are_kept(keep_ptr, row, others, (others >= 0) & (others < N), N, HAS_MASK)
        x = load_tokens(x_base, others, kept, stride_n, D)
        total = tl.dot(bands[i], x, total, input_precision=PRECISION)
    return total


@triton.jit
def landmark_places(pid_bh, M: tl.constexpr, D: tl.constexpr):
    """A head's landmarks, (M,), and their places in (B·H, M, D), (M, D)."""
    landmarks = tl.arange(0, M)
    return landmarks, (pid_bh.to(tl.int64) * M + landmarks[:, None]) * D + tl.arange(0, D)[None, :]


@triton.jit
def token_scores(q, k_landmarks, used, scale, PRECISION: tl.constexpr):
    """QK̃ᵀ/√D of a block of tokens, (tokens, landmarks), in units of log2; -inf at landmarks of empty segments."""
    scores = tl.dot(q, tl.trans(k_landmarks), input_precision=PRECISION) * scale
    return tl.where(used[None, :], scores, float("-inf"))


@triton.jit
def output_kernel(
    q_ptr, v_ptr, keep_ptr, counts_ptr, k_landmarks_ptr, values_ptr, bands_ptr, out_ptr,
    q_stride_b, q_stride_h, q_stride_n, v_stride_b, v_stride_h, v_stride_n, o_stride_b, o_stride_h, o_stride_n,
    H, N, tokens_of_split, scale,
    M: tl.constexpr, D: tl.constexpr, K: tl.constexpr, S, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """softmax(QK̃ᵀ)W + conv(V) of a split's tokens. Reads Q and V once (V's blocks with K - 1 neighbours), writes."""
    split, pid_bh = place(S)
    row, head = pid_bh // H, pid_bh % H
    q_base = q_ptr + token_offsets(pid_bh, H, q_stride_b, q_stride_h)
    v_base = v_ptr + token_offsets(pid_bh, H, v_stride_b, v_stride_h)
    o_base = out_ptr + token_offsets(pid_bh, H, o_stride_b, o_stride_h)
    landmarks, places = landmark_places(pid_bh, M, D)
    used = used_landmarks(counts_ptr, row, landmarks, M, HAS_MASK)
    k_landmarks = tl.load(k_landmarks_ptr + places).to(q_ptr.dtype.element_ty)
    values = tl.load(values_ptr + places).to(q_ptr.dtype.element_ty)
    if K > 0:
        bands = load_bands(bands_ptr, head, K, BLOCK, CHUNK)
    start = split * tokens_of_split
    end = tl.minimum(start + tokens_of_split, N)
    for begin in range(start, end, BLOCK):
        tokens = begin + tl.arange(0, BLOCK)
        kept = are_kept(keep_ptr, row, tokens, tokens < end, N, HAS_MASK)
        q = load_tokens(q_base, tokens, kept, q_stride_n, D)
        scores = token_scores(q, k_landmarks, used, scale, PRECISION)
        weights = tl.exp2(scores - tl.max(scores, 1)[:, None])  # the highest is of a landmark that is used: no -inf
        weights = weights / tl.sum(weights, 1)[:, None]
        out = tl.dot(weights.to(q.dtype), values, input_precision=PRECISION)
        if K > 0:
            out = convolve(
                out, v_base, keep_ptr, bands, row, begin, v_stride_n, N, D, K, BLOCK, CHUNK, HAS_MASK, PRECISION
            )
        out = tl.where(kept[:, None], out, 0.0)
        pointers = o_base + tokens.to(tl.int64)[:, None] * o_stride_n + tl.arange(0, D)[None, :]
        tl.store(pointers, out.to(out_ptr.dtype.element_ty), mask=(tokens < end)[:, None])
