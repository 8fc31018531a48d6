"""Synthesizer (Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021): softmax over
scores that no key takes part in.

Shapes: B batch, H heads, N tokens, L the longest input, D head dim, R rank, P · S factors of L.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention.base import Holds, Needs, is_exporting
from nystromformer.attention.linear import unless_nothing
from nystromformer.attention.rows import RowsAttention, valid
from nystromformer.config.attention.synthesizer import factor_of, rank_of

Kind = Literal["dense", "factorized_dense", "random", "factorized_random"]


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
        num_heads, head_dim, conv_kernel_size, ignore_mask: as for every attention.
        kind: which.
        rank: R, of "factorized_random" alone; None: 8, or L where it is less.
        factor: P, of "factorized_dense" alone, a divisor of L; None: the next below √L.
        max_length: L.
    """

    needs = Needs(max_length=True, no_key=True)

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        max_length: int,
        kind: Kind = "dense",
        rank: int | None = None,
        factor: int | None = None,
        conv_kernel_size: int | None = None,
        ignore_mask: bool = False,
    ) -> None:
        super().__init__(num_heads, head_dim, conv_kernel_size, ignore_mask)
        _check(max_length, kind, rank, factor)
        self.max_length = max_length
        self.kind = kind
        self.rank = rank
        self.factor = factor
        if kind in ("random", "factorized_random"):
            self.needs = replace(self.needs, no_query=True)
            self.zeroes_masked_query_key = False
        L, R, P = max_length, rank_of(rank, max_length), factor_of(factor, max_length)
        layer = head_dim**-0.5
        if kind == "dense":
            self.weight_HLD = _uniform(layer, num_heads, L, head_dim)
        elif kind == "factorized_dense":
            self.first_HDP = _uniform(layer, num_heads, head_dim, P)
            self.second_HDS = _uniform(layer, num_heads, head_dim, L // P)
        elif kind == "random":
            self.scores_HLL = nn.Parameter(torch.randn(num_heads, L, L))
        else:
            # So that the product, too, is of variance 1.
            self.rows_HLR, self.columns_HLR = (nn.Parameter(torch.randn(num_heads, L, R) * R**-0.25) for _ in range(2))

    @property
    def holds(self) -> Holds:
        return replace(super().holds, any_length=False)

    def attend_rows(self, q: Tensor, k: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        length = v.shape[2]
        if length > self.max_length:
            raise ValueError(
                f"synthesizer has learned scores of {self.max_length} places (max_length; max_seq_len of a model), "
                f"found {length}: cut the input, or train with more"
            )
        if self.kind == "dense":
            keys_BHND = _first(self.weight_HLD, 1, length).to(q.dtype).expand(q.shape[0], -1, -1, -1)
            return F.scaled_dot_product_attention(q.relu(), keys_BHND, v, attn_mask=_bias(lengths_B, v), scale=1.0)
        with torch.autocast(v.device.type, enabled=False):
            if self.kind == "factorized_dense":
                return self._by_factors(q.relu(), v, lengths_B)
            if self.kind == "random":
                scores_HNN = _first(_first(self.scores_HLL, 1, length), 2, length)
            else:
                scores_HNN = _first(self.rows_HLR, 1, length) @ _first(self.columns_HLR, 1, length).mT
            return _weighed(scores_HNN, v, lengths_B)

    def _by_factors(self, q: Tensor, v: Tensor, lengths_B: Tensor | None) -> Tensor:
        N, S = v.shape[2], self.second_HDS.shape[2]
        dtype = _exact(v.dtype)
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

    def extra_repr(self) -> str:
        sizes = {"factorized_random": f", rank={self.rank}", "factorized_dense": f", factor={self.factor}"}
        return f"{super().extra_repr()}, max_length={self.max_length}, kind={self.kind!r}{sizes.get(self.kind, '')}"


def _weighed(scores_HNN: Tensor, v_BHND: Tensor, lengths_B: Tensor | None) -> Tensor:
    """softmax over the places that a row has, of scores that all rows share."""
    B, _, N, D = v_BHND.shape
    # float16 has not the range of exponentials whose largest may be another row's.
    dtype = torch.float32 if v_BHND.dtype == torch.float16 else v_BHND.dtype
    scores_HNN = scores_HNN.to(_exact(v_BHND.dtype))
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
    if there_BN is None:
        return None
    zeros_BN = torch.zeros(there_BN.shape, dtype=v_BHND.dtype, device=v_BHND.device)
    return zeros_BN.masked_fill(~there_BN, float("-inf"))[:, None, None, :]


def _first(x: Tensor, dim: int, count: int) -> Tensor:
    if is_exporting():  # a slice would make the exported program depend on whether it is the whole
        return x.index_select(dim, torch.arange(count, device=x.device))
    return x.narrow(dim, 0, count)


def _exact(dtype: torch.dtype) -> torch.dtype:
    """What scores and their exponentials are computed in."""
    return dtype if dtype == torch.float64 else torch.float32


def _uniform(bound: float, *shape: int) -> nn.Parameter:
    """As torch initialises a linear layer."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


def _check(max_length: int, kind: Kind, rank: int | None, factor: int | None) -> None:
    for name, value, its_kind in (("rank", rank, "factorized_random"), ("factor", factor, "factorized_dense")):
        if value is not None and kind != its_kind:
            raise ValueError(f'{name} belongs to kind="{its_kind}": expected None beside "{kind}", found {value}')
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, found {max_length}")
    if rank is not None and not 1 <= rank <= max_length:
        raise ValueError(f"rank must be from 1 to max_length = {max_length}, found {rank}")
    if factor is not None and (factor < 1 or max_length % factor):
        raise ValueError(f"factor must be a divisor of max_length = {max_length}, found {factor}")
