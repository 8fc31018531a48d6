"""What is learned on the Long Range Arena: the class of a sequence or of a pair of them, and what masked tokens were.

Shapes: B rows, I examples of a batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model import SequenceModel, TokenModel
from nystromformer.tasks.finetuning.target import Classes, Plain


@dataclass(frozen=True)
class SequenceClasses(Classes):
    """One of a few classes of an example of one or two sequences.

    Args:
        sequences: of each example.
        over_padding: let the mean over a row count its padding, as zeros, as the authors of the paper do.
        guesses_tokens: learn to guess tokens of the examples that are hidden in training, in place of their classes.
    """

    sequences: int = 1
    over_padding: bool = False
    guesses_tokens: bool = False

    def build(self, config: ModelConfig) -> nn.Module:
        return SequenceModel(config, self.count, self.sequences, self.over_padding, self.guesses_tokens)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores_IC: Tensor = model(batch["tokens_BN"], batch["mask_BN"])[0]
        return scores_IC.float()

    def learn(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        names = ("tokens_BN", "mask_BN", "positions_BK", "guessed_BK")
        scores_IC, sums_B3 = model(*(batch.get(name) for name in names))
        classes_I = F.cross_entropy(scores_IC.float(), batch["labels"], reduction="none")
        if sums_B3 is None:
            return scores_IC.float(), classes_I
        return scores_IC.float(), torch.where(batch["hidden"], _per_example(sums_B3, len(classes_I))[:, 0], classes_I)


@dataclass(frozen=True)
class Tokens(Plain):
    """What masked tokens were; scores are loss, number right and number counted of each example's."""

    has_accuracy = False

    def build(self, config: ModelConfig) -> nn.Module:
        return TokenModel(config)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        sums_B3 = model(*(batch[name] for name in ("tokens_BN", "mask_BN", "positions_BK", "guessed_BK")))
        return _per_example(sums_B3, len(batch["labels"]))

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        return scores_IC[:, 0]


def _per_example(sums_B3: Tensor, examples: int) -> Tensor:
    """Mean loss of a masked token, number right and number counted, of the rows of each example together: (I, 3)."""
    sums_I3 = sums_B3.view(-1, examples, 3).sum(0)
    return torch.cat([sums_I3[:, :1] / sums_I3[:, 2:].clamp(min=1), sums_I3[:, 1:]], dim=1)
