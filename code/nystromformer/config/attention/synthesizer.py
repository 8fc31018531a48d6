"""Synthesizer."""

from typing import Literal

from .base import AttentionConfig


class SynthesizerConfig(AttentionConfig):
    """Synthesizer: scores without keys, learned for up to max_seq_len tokens (Tay et al. 2021)."""

    exceptional = ({"kind": "random"},)

    name: Literal["synthesizer"] = "synthesizer"
    kind: Literal["dense", "random"] = "dense"
    """Where the scores come from. dense: from each token, by an MLP of two layers whose first is the query projection;
    random: a learned matrix, independent of the tokens."""

    @property
    def num_projections(self) -> int:
        return 2 if self.kind == "dense" else 1

    @property
    def compares_queries_and_keys(self) -> bool:
        return False

    @property
    def learns_weights(self) -> bool:
        return True
