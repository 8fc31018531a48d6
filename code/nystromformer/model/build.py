"""The model of pretraining.

Shapes: B batch, N tokens, K masked positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder, first_of_rows
from nystromformer.model.heads import ClassificationHead, MaskedLMHead
from nystromformer.model.layers import at_positions


class PretrainingOutput(NamedTuple):
    mlm_BKV: Tensor | None
    """Vocabulary logits at the masked positions; None where labels were given."""
    mlm_sums: Tensor | None
    """Loss sum, number right and number counted of the masked positions, (3,), where labels were given."""
    order_B2: Tensor | None
    """Logits of the sentence order, where it is an objective."""


class PretrainingModel(nn.Module):
    """Encoder, masked-language-model head and, where "sop" is an objective, sentence order's (Lan et al. 2020)."""

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
        if positions_BK.dtype == torch.bool:
            raise ValueError(
                f"positions_BK must be positions, int64, found a mask, bool {tuple(positions_BK.shape)}: call "
                "model(tokens, positions, mask), or model.encoder(tokens, mask) for the vectors of all tokens"
            )
        order_B2 = None
        if self.sentence_order is None:
            hidden_BKE = self.encoder(tokens_BN, mask, types_BN, positions_BK)
        elif self.encoder.pooling == "first":
            mask = AttentionMask.wrap(mask, tokens_BN[:, None, :, None])
            wanted = torch.cat([first_of_rows(tokens_BN, mask), positions_BK], dim=1)
            hidden = self.encoder(tokens_BN, mask, types_BN, wanted)
            hidden_BKE, order_B2 = hidden[:, 1:], self.sentence_order(hidden[:, 0])
        else:
            hidden_BNE = self.encoder(tokens_BN, mask, types_BN)
            hidden_BKE = at_positions(hidden_BNE, positions_BK)
            order_B2 = self.sentence_order(self.encoder.pool(hidden_BNE, mask))
        word_VE = self.encoder.embeddings.word.weight
        if labels_BK is None:
            return PretrainingOutput(self.mlm(hidden_BKE, word_VE), None, order_B2)
        return PretrainingOutput(None, self.mlm.sums(hidden_BKE, word_VE, labels_BK), order_B2)


def count_parameters(module: nn.Module) -> int:
    """Trained numbers of a module, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
