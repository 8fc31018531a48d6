"""Slow, plain oracles in float64, written from the papers' equations; nothing here is shared with the modules.

Differentiable, so that gradients have an oracle too.
"""

from nystromformer.attention.reference.mixtures import (
    linear_attention,
    linformer_attention,
    performer_attention,
    piecewise_attention,
    positive_features,
    synthesizer_attention,
)
from nystromformer.attention.reference.mra import mra_attention
from nystromformer.attention.reference.near_far import near_far_attention
from nystromformer.attention.reference.nystrom import (
    lloyd_centres,
    nystrom_attention,
    segment_means,
    strided_tokens,
)
from nystromformer.attention.reference.patterns import (
    bigbird_pattern,
    longformer_attention,
    reformer_attention,
    sinkhorn_attention,
    sinkhorn_balanced,
)
from nystromformer.attention.reference.rows import (
    depthwise_convolution,
    pattern_attention,
    softmax_attention,
    softmax_matrix,
)

__all__ = [
    "bigbird_pattern",
    "depthwise_convolution",
    "linear_attention",
    "linformer_attention",
    "lloyd_centres",
    "longformer_attention",
    "mra_attention",
    "near_far_attention",
    "nystrom_attention",
    "pattern_attention",
    "performer_attention",
    "piecewise_attention",
    "positive_features",
    "reformer_attention",
    "segment_means",
    "sinkhorn_attention",
    "sinkhorn_balanced",
    "softmax_attention",
    "softmax_matrix",
    "strided_tokens",
    "synthesizer_attention",
]
