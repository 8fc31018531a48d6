"""Synthesizer (Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021): softmax over
scores that no key takes part in.

Shapes: B batch, H heads, N tokens, L the longest input, D head dim.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Holds, Needs
from nystromformer.attention.bias import infinite_bias
from nystromformer.attention.linear import unless_nothing
from nystromformer.attention.rows import RowsAttention, valid
from nystromformer.attention.tracing import is_exporting, without_autocast
from nystromformer.config.attention.synthesizer import SynthesizerConfig


class SynthesizerAttention(RowsAttention):
    """softmax(S) V, where S is not of pairs of tokens: time O(N²).

    A row's n-th valid token has the n-th row of S and is weighed by its n-th column. Shorter input uses the first of
    both; input beyond `max_length` is refused, because for that nothing was learned.

    - "dense": a token's scores are W₂ relu(W₁ x + b). W₁ is the query projection outside, so that
      q = W₁ x + b: for each head one, as wide as the head. No key projection is built; memory O(N).
    - "random": S is learned. Neither queries nor keys are built. The batch shares S and its exponentials: memory O(N²)
      for a layer, however many rows. A score that is 87 below the largest in its row of S weighs nothing, also where
      the largest is of a place that the tokens do not reach.

    Args:
        config, num_heads, head_dim: as for every attention.
        max_length: L.
    """

    config: SynthesizerConfig
    needs = Needs(max_length=True, no_key=True)

    def __init__(self, config: SynthesizerConfig, num_heads: int, head_dim: int, max_length: int) -> None:
        super().__init__(config, num_heads, head_dim)
        if max_length < 1:
            raise ValueError(f"max_length must be at least 1, found {max_length}")
        self.max_length = max_length
        if config.kind == "dense":
            # As torch initialises a linear layer.
            bound = head_dim**-0.5
            self.weight_HLD = nn.Parameter(torch.empty(num_heads, max_length, head_dim).uniform_(-bound, bound))
        else:
            self.needs = replace(self.needs, no_query=True)
            self.scores_HLL = nn.Parameter(torch.randn(num_heads, max_length, max_length))

    @property
    def zeroes_masked_query_key(self) -> bool:
        return self.config.kind == "dense"

    @property
    def holds(self) -> Holds:
        return replace(super().holds, any_length=False)

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        length = v.shape[2]
        if length > self.max_length:
            raise ValueError(
                f"synthesizer has learned scores for {self.max_length} positions (max_length; max_seq_len of a "
                f"model), found {length}: shorten the input, or train with a larger max_length"
            )
        if self.config.kind == "dense":
            keys_BHND = _first(self.weight_HLD, 1, length).to(q.dtype).expand(q.shape[0], -1, -1, -1)
            return F.scaled_dot_product_attention(q.relu(), keys_BHND, v, attn_mask=_bias(lengths_B, v), scale=1.0)
        with without_autocast(v):
            return _weighed(_first(_first(self.scores_HLL, 1, length), 2, length), v, lengths_B)


def _weighed(scores_HNN: Tensor, v_BHND: Tensor, lengths_B: Tensor | None) -> Tensor:
    """softmax over the places that a row has, of scores that all rows share."""
    B, _, N, D = v_BHND.shape
    # float16 has not the range of exponentials whose largest may be another row's.
    dtype = torch.float32 if v_BHND.dtype == torch.float16 else v_BHND.dtype
    scores_HNN = scores_HNN.to(torch.promote_types(v_BHND.dtype, torch.float32))
    # The batch beside the channels: each exponential is read once for all rows.
    values_HNX = v_BHND.to(dtype).permute(1, 2, 0, 3).flatten(2)
    there_BN = valid(lengths_B, N)
    if there_BN is None:
        out_HNBD = (torch.softmax(scores_HNN, dim=-1).to(dtype) @ values_HNX).unflatten(2, (B, D))
    else:
        weights_HNN = (scores_HNN - scores_HNN.detach().amax(-1, keepdim=True)).exp().to(dtype)
        there_HNB = there_BN.T.to(dtype).expand(values_HNX.shape[0], -1, -1)
        sums_HNX = weights_HNN @ torch.cat([values_HNX, there_HNB], dim=2)
        sums_HNBD, total_HNB = sums_HNX[..., : B * D].unflatten(2, (B, D)), sums_HNX[..., B * D :]
        out_HNBD = sums_HNBD / unless_nothing(total_HNB, torch.finfo(dtype).tiny)[..., None]
    return out_HNBD.permute(2, 0, 1, 3).to(v_BHND.dtype)


def _bias(lengths_B: Tensor | None, v_BHND: Tensor) -> Tensor | None:
    """(B, 1, 1, N); never -inf for a whole row."""
    there_BN = None if lengths_B is None else valid(lengths_B.clamp_min(1), v_BHND.shape[2])
    return None if there_BN is None else infinite_bias(there_BN, v_BHND.dtype)[:, None, None]


def _first(x: Tensor, dim: int, count: int) -> Tensor:
    if is_exporting():  # a slice would make the exported program depend on whether it is the whole
        return x.index_select(dim, torch.arange(count, device=x.device))
    return x.narrow(dim, 0, count)
