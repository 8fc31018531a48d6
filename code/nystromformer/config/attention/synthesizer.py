"""Synthesizer."""

from math import isqrt
from typing import Literal

from ..messages import Impossible
from ..ranges import Size
from .base import AttentionConfig

MOST_RANK_UNASKED = 8
"""The paper's rank, where none is given and the length has so many."""

_FACTORISED = {"rank": "factorized_random", "factor": "factorized_dense"}
"""The kind that a parameter belongs to."""


class SynthesizerConfig(AttentionConfig):
    """Synthesizer: scores without keys, learned for up to max_seq_len tokens (Tay et al. 2021)."""

    exceptional = ({"kind": "factorized_dense"}, {"kind": "random"}, {"kind": "factorized_random"})
    counts_tokens = ("rank",)

    name: Literal["synthesizer"] = "synthesizer"
    kind: Literal["dense", "factorized_dense", "random", "factorized_random"] = "dense"
    """Where the scores come from. dense: from each token, by an MLP of two layers whose first is the query projection;
    factorized_dense: the same as products of two shorter vectors; random: a learned matrix, independent of the tokens;
    factorized_random: such a matrix as a product of two of lower rank."""
    rank: Size | None = None
    """Rank of the matrix of factorized_random; null: 8, or max_seq_len if it is smaller."""
    factor: Size | None = None
    """Size of the first vector of factorized_dense, a divisor of max_seq_len; the second has the size of the quotient.
    null: the largest divisor up to the square root."""

    def impossible(self) -> Impossible:
        for key, kind in _FACTORISED.items():
            if (found := getattr(self, key)) is not None and kind != self.kind:
                yield (key,), f'expected null with kind = "{self.kind}", found {found}: it belongs to "{kind}"'

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        problems = super().impossible_at(max_seq_len)
        if self.factor is not None and max_seq_len % self.factor:
            problems.append(("factor", f"expected a divisor of max_seq_len = {max_seq_len}, found {self.factor}"))
        return problems

    @property
    def num_projections(self) -> int:
        return 2 if self.kind in ("dense", "factorized_dense") else 1

    @property
    def compares_queries_and_keys(self) -> bool:
        return False

    @property
    def learns_weights(self) -> bool:
        return True


def rank_of(rank: int | None, max_length: int) -> int:
    """The rank that is meant."""
    return min(MOST_RANK_UNASKED, max_length) if rank is None else rank


def factor_of(factor: int | None, max_length: int) -> int:
    """The factor that is meant."""
    return next(a for a in range(isqrt(max_length), 0, -1) if max_length % a == 0) if factor is None else factor
