"""Models of fine-tuning tasks: a pretrained encoder under a fresh head.

Shapes: B rows, N tokens, K masked tokens, E width, V kinds of token, C classes or a row's candidates, I instances,
A the most candidates of one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder, first_of_rows
from nystromformer.model.heads import (
    IGNORED,
    CandidateHead,
    ClassificationHead,
    MaskedLMHead,
    PooledHead,
    TokenHead,
    TwoTowerHead,
)
from nystromformer.model.layers import at_positions


class ClassificationModel(nn.Module):
    """Class logits of a row, or of several that belong together, from its pooled vector; one class is a regression."""

    def __init__(self, config: ModelConfig, num_classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.head = ClassificationHead(config.transformer_dim, num_classes, config.dropout_prob)

    def forward(
        self,
        tokens_BN: Tensor,
        mask: Tensor | AttentionMask | None = None,
        types_BN: Tensor | None = None,
        rows_I: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, C), or (I, C).

        Args:
            tokens_BN, mask, types_BN: as for Encoder.
            rows_I: how many rows, one after another, each instance has, int64: the head gets the mean of their pooled
                vectors. None: each row is an instance.
        """
        return self.logits(self.pooled(tokens_BN, mask, types_BN), rows_I)

    def logits(self, pooled_BE: Tensor, rows_I: Tensor | None = None) -> Tensor:
        """What the head makes of pooled vectors, (B, C) or (I, C); rows_I as for `forward`."""
        logits: Tensor = self.head(mean_over(pooled_BE, rows_I))
        return logits

    def pooled(
        self, tokens_BN: Tensor, mask: Tensor | AttentionMask | None = None, types_BN: Tensor | None = None
    ) -> Tensor:
        """What the head gets of each row, (B, E); arguments as for Encoder."""
        if self.encoder.pooling == "first":
            mask = AttentionMask.wrap(mask, tokens_BN[:, None, :, None])
            pooled_BE: Tensor = self.encoder(tokens_BN, mask, types_BN, first_of_rows(tokens_BN, mask))[:, 0]
            return pooled_BE
        return self.encoder.pool(self.encoder(tokens_BN, mask, types_BN), mask)


def mean_over(pooled_BE: Tensor, rows_I: Tensor | None) -> Tensor:
    """The mean over each instance's rows, (I, E); rows_I as of ClassificationModel."""
    if rows_I is None:
        return pooled_BE
    instances = torch.arange(len(rows_I), device=rows_I.device)
    instance_B = instances.repeat_interleave(rows_I, output_size=len(pooled_BE))
    # Sums of one-hot products, and not scattered ones, whose order a GPU varies.
    of_instance_IB1 = (instance_B == instances[:, None])[..., None]
    return torch.where(of_instance_IB1, pooled_BE.float(), 0.0).sum(1) / rows_I[:, None]


class TokenClassificationModel(nn.Module):
    """Class logits of each token."""

    def __init__(self, config: ModelConfig, num_classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.head = TokenHead(config.transformer_dim, num_classes, config.dropout_prob)

    def forward(
        self, tokens_BN: Tensor, mask: Tensor | AttentionMask | None = None, types_BN: Tensor | None = None
    ) -> Tensor:
        """Logits (B, N, C), without meaning at masked positions; arguments as for Encoder."""
        logits_BNC: Tensor = self.head(self.encoder(tokens_BN, mask, types_BN))
        return logits_BNC


class SequenceModel(nn.Module):
    """Class logits of a sequence, or of a pair whose two are read by one encoder (the authors' Long Range Arena).

    Args:
        sequences: 1, or 2 of a pair: rows 0 … I-1 are then the first ones, I … 2I-1 the second.
        guesses_tokens: have a head that guesses masked tokens, too.
    """

    def __init__(self, config: ModelConfig, num_classes: int, sequences: int = 1, guesses_tokens: bool = False) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        head = PooledHead if sequences == 1 else TwoTowerHead
        self.head = head(config.transformer_dim, config.transformer_hidden_dim, num_classes)
        self.mlm = MaskedLMHead(config) if guesses_tokens else None

    def forward(
        self,
        tokens_BN: Tensor,
        mask: Tensor | AttentionMask | None = None,
        positions_BK: Tensor | None = None,
        guessed_BK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits (I, C) and, where tokens are to be guessed, of each row what `token_sums` says, (B, 3).

        Args:
            positions_BK, guessed_BK: where tokens are masked and which they were, int64, IGNORED where none is.
        """
        hidden_BNE = self.encoder(tokens_BN, mask)
        logits_IC = self.head(self.encoder.pool(hidden_BNE, mask))
        if self.mlm is None or positions_BK is None or guessed_BK is None:
            return logits_IC, None
        hidden_BKE = at_positions(hidden_BNE, positions_BK)
        return logits_IC, token_sums(self.mlm, hidden_BKE, self.encoder.embeddings.word.weight, guessed_BK)


def token_sums(mlm: MaskedLMHead, hidden_BKE: Tensor, word_VE: Tensor, guessed_BK: Tensor) -> Tensor:
    """Loss sum, number right and number counted of each row's masked tokens, (B, 3) float32."""
    logits_BKV = mlm(hidden_BKE, word_VE).float()
    losses_BK = F.cross_entropy(logits_BKV.mT, guessed_BK, reduction="none", ignore_index=IGNORED)
    right_BK = logits_BKV.detach().argmax(-1) == guessed_BK
    counted_BK = guessed_BK != IGNORED
    return torch.stack([losses_BK.sum(1), right_BK.sum(1).float(), counted_BK.sum(1).float()], dim=1)


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
