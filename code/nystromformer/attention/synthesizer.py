"""Synthesizer (Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021): softmax over
scores that no key takes part in.

Shapes: B batch, H heads, N tokens, L the longest input, D head dim.
"""

import torch
from torch import Tensor, nn

from nystromformer.attention.base import Needs
from nystromformer.attention.rows import LearnedRowsAttention, attend_to_all
from nystromformer.attention.tracing import first_places
from nystromformer.config.attention.methods import SynthesizerConfig


class SynthesizerAttention(LearnedRowsAttention):
    """softmax(S) V, where S is not of pairs of tokens ("dense"): time O(N²), memory O(N).

    A token's scores are W₂ relu(W₁ x + b), of which its row's n-th valid token has the n-th. W₁ is the query
    projection outside, so that q = W₁ x + b: for each head one, as wide as the head. No key projection is built.
    """

    config: SynthesizerConfig
    needs = Needs(max_length=True, no_key=True)

    def __init__(self, config: SynthesizerConfig, num_heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(config, num_heads, head_dim, max_length)
        # As torch initialises a linear layer.
        bound = head_dim**-0.5
        self.weight_HLD = nn.Parameter(torch.empty(num_heads, max_length, head_dim).uniform_(-bound, bound))

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        keys_BHND = first_places(self.weight_HLD, 1, v.shape[2]).to(q.dtype).expand(q.shape[0], -1, -1, -1)
        return attend_to_all(q.relu(), keys_BHND, v, lengths_B, scale=1.0)
