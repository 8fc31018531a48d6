"""The parameters of all attentions with their types, written by `python -m nystromformer.config`.

The configs in nystromformer/config/attention/ say what each does and which attention has it.
"""

from typing import Literal, TypedDict


class LayerParameters(TypedDict, total=False):
    """Those that a layer takes beside its own."""

    across_buckets: bool
    as_in_table3: bool
    block_size: int
    choice: Literal["head", "block", "query"]
    chunk_length: int
    coarse: bool
    conv_kernel_size: int | None
    dilation: int | tuple[int, ...]
    extra_global_tokens: int
    factor: int | None
    global_capacity: int
    global_projections: bool
    ignore_mask: bool
    implementation: Literal["auto", "torch", "triton"]
    iterations: int
    kernel: Literal["softmax", "relu"]
    kind: Literal["dense", "factorized_dense", "random", "factorized_random"]
    kmeans_iterations: int | None
    landmarks: Literal["segment_means", "kmeans"] | Literal["segment_means", "strided", "kmeans"]
    neighbours: int
    num_blocks: int
    num_buckets: int | None
    num_features: int
    num_first_blocks: int
    num_global_blocks: int
    num_global_tokens: int
    num_hashes: int
    num_landmarks: int
    num_random_blocks: int
    num_selected: int
    num_window_blocks: int
    pattern: Literal["strided", "fixed"]
    pinv_iterations: int
    pinv_ridge: float | None
    pinv_start: Literal["matrix", "batch"]
    projected_length: int
    rank: int | None
    redraw_steps: int | None
    segments: Literal["valid", "padded", "padded_unmasked"]
    share_keys_and_values: bool
    sharing: Literal["head", "layer", "model"]
    stride: int
    summary: int
    temperature: float
    window: int


class AttentionParameters(LayerParameters, total=False):
    """All of them."""

    heads: Literal["merged", "separate"]
