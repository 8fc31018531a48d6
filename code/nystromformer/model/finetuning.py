"""Models of fine-tuning tasks: a pretrained encoder under a fresh head.

Shapes: B rows, N tokens, C classes or a row's candidates, I instances, A the most candidates of one.
"""

from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder
from nystromformer.model.heads import CandidateHead, ClassificationHead


class ClassificationModel(nn.Module):
    """Class logits of a row from its pooled vector; one class is a regression."""

    def __init__(self, config: ModelConfig, num_classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.head = ClassificationHead(config.transformer_dim, num_classes, config.dropout_prob)

    def forward(
        self, tokens_BN: Tensor, mask: Tensor | AttentionMask | None = None, types_BN: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C); arguments as for Encoder."""
        shared = AttentionMask(mask) if isinstance(mask, Tensor) else mask
        if self.encoder.pooling == "first":
            first_B1 = tokens_BN.new_zeros(len(tokens_BN), 1)
            pooled_BE = self.encoder(tokens_BN, shared, types_BN, first_B1)[:, 0]
        else:
            pooled_BE = self.encoder.pool(self.encoder(tokens_BN, shared, types_BN), shared)
        logits_BC: Tensor = self.head(pooled_BE)
        return logits_BC


class CandidateModel(nn.Module):
    """A score for each candidate of an instance, whose input may be cut into several rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.head = CandidateHead(config.transformer_dim, config.dropout_prob)

    def forward(
        self,
        tokens_BN: Tensor,
        mask_BN: Tensor,
        global_BN: Tensor,
        positions_BC: Tensor,
        candidates_BC: Tensor,
        instance_B: Tensor,
        present_IA: Tensor,
    ) -> Tensor:
        """Scores (I, A), float32; -inf where an instance has no such candidate.

        Args:
            tokens_BN, mask_BN: as for Encoder.
            global_BN: bool, True for the tokens that attend globally where an attention has such.
            positions_BC: the token of each of the row's candidates, int64; -1 in the padding.
            candidates_BC, instance_B, present_IA: as for CandidateHead.
        """
        mask = AttentionMask(mask_BN, global_BN)
        hidden_BCE = self.encoder(tokens_BN, mask, positions_BK=positions_BC.clamp(min=0))
        scores_IA: Tensor = self.head(hidden_BCE, candidates_BC, instance_B, present_IA)
        return scores_IA
