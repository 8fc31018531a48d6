"""What stands on top of an encoder.

Shapes: B batch, E width, K masked positions, V vocabulary, C classes or a row's candidates.
"""

from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from nystromformer.attention.tracing import is_under_autocast, without_autocast
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import initialize
from nystromformer.model.layers import activation
from nystromformer.model.loss import linear_cross_entropy
from nystromformer.model.norm import build_norm

IGNORED = -100
"""Label of what does not count towards a loss (PyTorch's default `ignore_index`)."""


def unrounded(linear: nn.Linear, x: Tensor) -> Tensor:
    """Scores in the precision of the layer's weights also under autocast, by which many rows would have the same score:
    bfloat16 has 256 numbers from 1 to 2.
    """
    with without_autocast(x) if is_under_autocast(x) else nullcontext():
        scores: Tensor = linear(x.to(linear.weight.dtype))
    return scores


class MaskedLMHead(nn.Module):
    """Vocabulary logits of hidden vectors, those at masked positions; the output matrix is the word embedding (tied).

    At 15 % masking this is a seventh of the logits, which dominate a small model's step.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.transform: nn.Module | None = None
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        if config.head_transform:
            self.transform = nn.Linear(config.transformer_dim, config.embedding_dim, config.bias)
            self.activation = activation(config.activation)
            self.norm = build_norm(config, config.embedding_dim)
        self.apply(initialize)

    def forward(self, hidden_BKE: Tensor, word_VE: Tensor) -> Tensor:
        """Logits (B, K, V) of the encoder's output at the positions, by the word embedding's weight."""
        return nn.functional.linear(self._before_logits(hidden_BKE), word_VE, self.bias)

    def sums(self, hidden_BKE: Tensor, word_VE: Tensor, labels_BK: Tensor) -> Tensor:
        """Loss sum, number right and number counted, (3,), without holding the logits; labels int64, IGNORED where a
        position does not count."""
        x_BKE = self._before_logits(hidden_BKE)
        return linear_cross_entropy(x_BKE.flatten(0, 1), word_VE, self.bias, labels_BK.flatten(), IGNORED)

    def _before_logits(self, hidden_BKE: Tensor) -> Tensor:
        if self.transform is None:
            return hidden_BKE
        x_BKE: Tensor = self.norm(self.activation(self.transform(hidden_BKE)))
        return x_BKE


class ClassificationHead(nn.Module):
    """Dense, tanh, dropout, linear over a pooled vector: (B, E) -> (B, C). One class is a regression."""

    def __init__(self, width: int, num_classes: int, dropout_prob: float = 0.0) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = nn.Linear(width, num_classes)
        self.apply(initialize)

    def forward(self, pooled_BE: Tensor) -> Tensor:
        return unrounded(self.classifier, self.dropout(torch.tanh(self.dense(pooled_BE))))


class TokenHead(nn.Module):
    """Dropout, linear over each token's vector, for its class (names, parts of speech): (B, N, E) -> (B, N, C)."""

    def __init__(self, width: int, num_classes: int, dropout_prob: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        self.classifier = nn.Linear(width, num_classes)
        self.apply(initialize)

    def forward(self, hidden_BNE: Tensor) -> Tensor:
        return unrounded(self.classifier, self.dropout(hidden_BNE))


class PooledHead(nn.Module):
    """Dense, ReLU, linear over a pooled vector (the authors' Long Range Arena): (B, E) -> (B, C)."""

    def __init__(self, width: int, hidden: int, num_classes: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))
        self.apply(initialize)

    def forward(self, pooled_BE: Tensor) -> Tensor:
        dense, relu, classifier = self.mlp
        return unrounded(cast("nn.Linear", classifier), relu(dense(pooled_BE)))


class TwoTowerHead(PooledHead):
    """An MLP over [x0, x1, x0·x1, x0 − x1] of two rows' vectors (the authors' LRA retrieval): 2B rows -> (B, C).

    The encoder sees both towers in one call: rows 0 … B-1 are the first documents, B … 2B-1 the second.
    """

    def __init__(self, width: int, hidden: int, num_classes: int) -> None:
        super().__init__(4 * width, hidden, num_classes)

    def forward(self, pooled_2BE: Tensor) -> Tensor:
        if pooled_2BE.shape[0] % 2:
            raise ValueError(f"expected the rows of both towers, an even number, found {pooled_2BE.shape[0]}")
        x0_BE, x1_BE = pooled_2BE.chunk(2)
        return super().forward(torch.cat([x0_BE, x1_BE, x0_BE * x1_BE, x0_BE - x1_BE], dim=-1))


class CandidateHead(nn.Module):
    """A score per candidate from the tokens that stand for it (WikiHop): (B, C, E) -> (I, A).

    I instances, A the most candidates of one. An instance may be cut into several rows; a candidate's score is the mean
    of those that it got in the rows that have it.
    """

    def __init__(self, width: int, dropout_prob: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout_prob)
        self.score = nn.Linear(width, 1)
        self.apply(initialize)

    def forward(self, hidden_BCE: Tensor, candidates_BC: Tensor, instance_B: Tensor, present_IA: Tensor) -> Tensor:
        """Scores (I, A), float32; -inf where an instance has no such candidate.

        Args:
            hidden_BCE: the encoder's output at the candidates' tokens.
            candidates_BC: which of its instance's candidates each is, int64; -1 in the padding.
            instance_B: the instance of each row, int64.
            present_IA: bool, True for the candidates that an instance has.
        """
        scores_BC = unrounded(self.score, self.dropout(hidden_BCE))[..., 0].float()
        given_BC = candidates_BC >= 0
        # One slot more takes the padding. Sums of one-hot products, and not scattered ones, whose order a GPU varies.
        slots = (len(candidates_BC), present_IA.shape[1] + 1)
        slot_BC = torch.where(given_BC, candidates_BC, present_IA.shape[1])
        placed_BA = scores_BC.new_zeros(slots).scatter(1, slot_BC, scores_BC)[:, :-1]
        counted_BA = scores_BC.new_zeros(slots).scatter(1, slot_BC, 1.0)[:, :-1]
        of_instance_IB1 = (instance_B == torch.arange(len(present_IA), device=instance_B.device)[:, None])[..., None]
        total_IA = torch.where(of_instance_IB1, placed_BA, 0.0).sum(1)
        count_IA = torch.where(of_instance_IB1, counted_BA, 0.0).sum(1)
        return torch.where(present_IA, total_IA / count_IA.clamp(min=1), float("-inf"))
