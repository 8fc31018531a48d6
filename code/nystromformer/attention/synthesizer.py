"""Synthesizer (Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021): softmax over
scores that no key takes part in.

Shapes: B batch, H heads, N tokens, L the longest input, D head dim, R rank, P · S factors of L.
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
from nystromformer.config.attention.synthesizer import SynthesizerConfig, factor_of, rank_of


class SynthesizerAttention(RowsAttention):
    """softmax(S) V, where S is not of pairs of tokens: time O(N²).

    A row's n-th valid token has the n-th row of S and is weighed by its n-th column. Shorter input uses the first of
    both; input beyond `max_length` is refused, because for that nothing was learned.

    - "dense": a token's scores are W₂ relu(W₁ x + b). W₁ is the query projection outside, so that
      q = W₁ x + b: for each head one, as wide as the head. No key projection is built; memory O(N).
    - "factorized_dense": two vectors of P and of S numbers are made of relu(q) in W₂'s way, and the score of place n is
      the product of number ⌊n/S⌋ of the first and number n mod S of the second, so that each place has a pair of its
      own. (The paper repeats both vectors to the length, and leaves the order open.) Memory O(N²).
    - "random": S is learned. Neither queries nor keys are built. The batch shares S and its exponentials: memory O(N²)
      for a layer, however many rows. A score that is 87 below the largest in its row of S weighs nothing, also where
      the largest is of a place that the tokens do not reach.
    - "factorized_random": that with S = S₁ S₂ᵀ of rank R.

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
        if problems := config.impossible_at(max_length):
            raise ValueError("; ".join(f"{key}: {text}" for key, text in problems))
        self.max_length = L = max_length
        if self._is_random:
            self.needs = replace(self.needs, no_query=True)
        R, P = rank_of(config.rank, L), factor_of(config.factor, L)
        layer = head_dim**-0.5
        if config.kind == "dense":
            self.weight_HLD = _uniform(layer, num_heads, L, head_dim)
        elif config.kind == "factorized_dense":
            self.first_HDP = _uniform(layer, num_heads, head_dim, P)
            self.second_HDS = _uniform(layer, num_heads, head_dim, L // P)
        elif config.kind == "random":
            self.scores_HLL = nn.Parameter(torch.randn(num_heads, L, L))
        else:
            # So that the product, too, is of variance 1.
            self.rows_HLR, self.columns_HLR = (nn.Parameter(torch.randn(num_heads, L, R) * R**-0.25) for _ in range(2))

    @property
    def _is_random(self) -> bool:
        return self.config.kind in ("random", "factorized_random")

    @property
    def zeroes_masked_query_key(self) -> bool:
        return not self._is_random

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
            if self.config.kind == "factorized_dense":
                return self._by_factors(q.relu(), v, lengths_B)
            if self.config.kind == "random":
                scores_HNN = _first(_first(self.scores_HLL, 1, length), 2, length)
            else:
                scores_HNN = _first(self.rows_HLR, 1, length) @ _first(self.columns_HLR, 1, length).mT
            return _weighed(scores_HNN, v, lengths_B)

    def _by_factors(self, q: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        N, S = v.shape[2], self.second_HDS.shape[2]
        dtype = torch.promote_types(v.dtype, torch.float32)
        first_BHNP, second_BHNS = ((q @ weight.to(q.dtype)).to(dtype) for weight in (self.first_HDP, self.second_HDS))
        if is_exporting():  # a product of the first factors would be a view of a size that S divides
            places_N = torch.arange(N, device=v.device)
            scores_BHNN = first_BHNP.index_select(3, places_N // S) * second_BHNS.index_select(3, places_N % S)
        else:
            pairs_BHNPS = first_BHNP[..., : -(-N // S), None] * second_BHNS[..., None, :]
            scores_BHNN = pairs_BHNPS.flatten(3)[..., :N]
        bias = _bias(lengths_B, v)
        if bias is not None:
            scores_BHNN = scores_BHNN + bias
        return torch.softmax(scores_BHNN, dim=-1).to(v.dtype) @ v


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


def _uniform(bound: float, *shape: int) -> nn.Parameter:
    """As torch initialises a linear layer."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
