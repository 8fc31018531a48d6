"""Whole models from a config.

Shapes: B batch, N tokens, K masked positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder
from nystromformer.model.heads import ClassificationHead, MaskedLMHead


class PretrainingOutput(NamedTuple):
    mlm_BKV: Tensor
    """Vocabulary logits at the masked positions."""
    order_B2: Tensor | None
    """Logits of "in order", "swapped"; None where the model has no sentence-order head."""


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
    ) -> PretrainingOutput:
        """Logits at the masked positions and of the sentence order; arguments as for Encoder and MaskedLMHead."""
        hidden_BNE = self.encoder(tokens_BN, mask, types_BN)
        mlm_BKV = self.mlm(hidden_BNE, positions_BK, self.encoder.embeddings.word.weight)
        if self.sentence_order is None:
            return PretrainingOutput(mlm_BKV, None)
        return PretrainingOutput(mlm_BKV, self.sentence_order(self.encoder.pool(hidden_BNE, mask)))


def count_parameters(module: nn.Module) -> int:
    """Trained numbers of a module, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
