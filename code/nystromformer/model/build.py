"""Whole models from a config.

Shapes: B batch, N tokens, K masked positions, V vocabulary, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.config import ModelConfig
from nystromformer.model.encoder import Encoder, first_of_rows
from nystromformer.model.heads import ClassificationHead, MaskedLMHead
from nystromformer.model.layers import at_positions


@dataclass(frozen=True)
class ClassHead:
    """The head of an objective that tells classes apart, beside masked language modelling."""

    name: str
    """The module's, with which the names of its weights begin."""
    classes: int
    of: Literal["rows", "positions"]
    """What has a class: each row, by its pooled vector, or each masked position."""


CLASS_HEADS = {
    "sop": ClassHead("sentence_order", 2, "rows"),
}
"""By the objective's name in config.json."""


class PretrainingOutput(NamedTuple):
    mlm_BKV: Tensor | None
    """Vocabulary logits at the masked positions; None where labels were given."""
    mlm_sums: Tensor | None
    """Loss sum, number right and number counted of the masked positions, (3,), where labels were given."""
    classes: dict[str, Tensor]
    """Logits of the other objectives by their names: (B, C) of rows, (B, K, C) of positions."""


class PretrainingModel(nn.Module):
    """Encoder, masked-language-model head and those of other objectives, such as sentence order (Lan et al. 2020).

    Raises:
        ValueError: an objective without a head.
    """

    sentence_order: ClassificationHead | None

    def __init__(self, config: ModelConfig, objectives: Sequence[str]) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.mlm = MaskedLMHead(config)
        unknown = set(objectives) - {"mlm", *CLASS_HEADS}
        if unknown:
            raise ValueError(f"no head for {', '.join(sorted(unknown))}: CLASS_HEADS has {', '.join(CLASS_HEADS)}")
        self.heads = {name: head for name, head in CLASS_HEADS.items() if name in objectives}
        for name, head in CLASS_HEADS.items():
            module = ClassificationHead(config.transformer_dim, head.classes) if name in objectives else None
            self.register_module(head.name, module)

    def forward(
        self,
        tokens_BN: Tensor,
        positions_BK: Tensor,
        mask: Tensor | AttentionMask | None = None,
        types_BN: Tensor | None = None,
        labels_BK: Tensor | None = None,
    ) -> PretrainingOutput:
        """Logits of the masked positions, or with labels their loss; and logits of the other objectives.

        Args:
            tokens_BN, mask, types_BN: as for Encoder.
            positions_BK: the masked positions, int64; padded entries may name any position.
            labels_BK: as for `MaskedLMHead.sums`.

        Raises:
            ValueError: a mask in the positions' place; as of Encoder.
        """
        if positions_BK.dtype == torch.bool:
            raise ValueError(
                f"positions_BK must be positions, int64, found a mask, bool {tuple(positions_BK.shape)}: call "
                "model(tokens, positions, mask), or model.encoder(tokens, mask) for the vectors of all tokens"
            )
        hidden_BKE, pooled_BE = self._encoded(tokens_BN, positions_BK, mask, types_BN)
        word_VE = self.encoder.embeddings.word.weight
        classes = {
            name: getattr(self, head.name)(pooled_BE if head.of == "rows" else hidden_BKE)
            for name, head in self.heads.items()
        }
        if labels_BK is None:
            return PretrainingOutput(self.mlm(hidden_BKE, word_VE), None, classes)
        return PretrainingOutput(None, self.mlm.sums(hidden_BKE, word_VE, labels_BK), classes)

    def _encoded(
        self,
        tokens_BN: Tensor,
        positions_BK: Tensor,
        mask: Tensor | AttentionMask | None,
        types_BN: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden vectors of the masked positions and, for classes of rows, the pooled one; no more than these."""
        if not any(head.of == "rows" for head in self.heads.values()):
            return self.encoder(tokens_BN, mask, types_BN, positions_BK), None
        if self.encoder.pooling == "first":
            mask = AttentionMask.wrap(mask, tokens_BN[:, None, :, None])
            wanted = torch.cat([first_of_rows(tokens_BN, mask), positions_BK], dim=1)
            hidden = self.encoder(tokens_BN, mask, types_BN, wanted)
            return hidden[:, 1:], hidden[:, 0]
        hidden_BNE = self.encoder(tokens_BN, mask, types_BN)
        return at_positions(hidden_BNE, positions_BK), self.encoder.pool(hidden_BNE, mask)


def count_parameters(module: nn.Module) -> int:
    """Trained numbers of a module, shared ones once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
