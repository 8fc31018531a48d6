"""Whole models from a config.

Shapes: B batch, N tokens, K masked positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder
from nystromformer.model.heads import ClassificationHead, MaskedLMHead
from nystromformer.model.layers import at_positions


class PretrainingOutput(NamedTuple):
    mlm_BKV: Tensor | None
    """Vocabulary logits at the masked positions; None where labels were given."""
    order_B2: Tensor | None
    """Logits of "in order", "swapped"; None where the model has no sentence-order head."""
    mlm_sums: Tensor | None
    """Loss sum, number right and number counted of the masked positions, (3,), where labels were given."""


class PretrainingModel(nn.Module):
    """Encoder, masked-language-model head and, where asked, sentence-order head (Lan et al. 2020)."""

    def __init__(self, config: ModelConfig, objectives: Sequence[str]) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.mlm = MaskedLMHead(config)
        self.sentence_order = ClassificationHead(config.transformer_dim, 2) if "sop" in objectives else None

    def forward(
        self,
        tokens_BN: Tensor,
        positions_BK: Tensor,
        mask: Tensor | AttentionMask | None = None,
        types_BN: Tensor | None = None,
        labels_BK: Tensor | None = None,
    ) -> PretrainingOutput:
        """Logits of the masked positions, or with labels their loss; and logits of the sentence order.

        Args:
            tokens_BN, mask, types_BN: as for Encoder.
            positions_BK: the masked positions, int64; padded entries may name any position.
            labels_BK: as for `MaskedLMHead.sums`.
        """
        hidden_BKE, pooled_BE = self._encoded(tokens_BN, positions_BK, mask, types_BN)
        word_VE = self.encoder.embeddings.word.weight
        order_B2 = None if self.sentence_order is None else self.sentence_order(pooled_BE)
        if labels_BK is None:
            return PretrainingOutput(self.mlm(hidden_BKE, word_VE), order_B2, None)
        return PretrainingOutput(None, order_B2, self.mlm.sums(hidden_BKE, word_VE, labels_BK))

    def _encoded(
        self,
        tokens_BN: Tensor,
        positions_BK: Tensor,
        mask: Tensor | AttentionMask | None,
        types_BN: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden vectors of the masked positions and, for a sentence order, the pooled one; no more than these."""
        if self.sentence_order is None:
            return self.encoder(tokens_BN, mask, types_BN, positions_BK), None
        if self.encoder.pooling == "first":
            hidden = self.encoder(tokens_BN, mask, types_BN, F.pad(positions_BK, (1, 0)))
            return hidden[:, 1:], hidden[:, 0]
        hidden_BNE = self.encoder(tokens_BN, mask, types_BN)
        return at_positions(hidden_BNE, positions_BK), self.encoder.pool(hidden_BNE, mask)


def count_parameters(module: nn.Module) -> int:
    """Trained numbers of a module, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
