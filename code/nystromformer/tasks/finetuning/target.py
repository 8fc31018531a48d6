"""What is learned: classes, a value, several labels, ordered classes, or which of an instance's candidates is right.

Shapes: I examples of a batch, C outputs: of classes one each, of ordered ones one less, one value, one of each label,
or the most candidates of an example.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model import CandidateModel, ClassificationModel
from nystromformer.model.finetuning import mean_over

NEVER = 1e-9
"""The chance in place of 0 where a finite logit is asked for."""


class Target(ABC):
    """Model, scores and loss of a kind of task."""

    has_accuracy = False

    @abstractmethod
    def build(self, config: ModelConfig) -> nn.Module:
        """The model, with initial weights; its encoder is called `encoder`."""

    @abstractmethod
    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Scores of a batch's examples, (I, C) float32."""

    @abstractmethod
    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        """The loss of each example, (I,)."""

    def learn(self, model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores of a training batch's examples, and what is learned from each: (I, C), (I,). Usually their loss."""
        scores_IC = self.scores(model, batch)
        return scores_IC, self.losses(scores_IC, batch["labels"])


@dataclass(frozen=True)
class Pooled(Target):
    """The scores are of a text's vector."""

    count: int = 1
    """Of the classes or labels."""
    weights: tuple[float, ...] | None = field(default=None, kw_only=True)
    """Of the classes; of several labels how much a text that has one counts beside one that has not."""

    @property
    def outputs(self) -> int:
        """Of the head."""
        return self.count

    def build(self, config: ModelConfig) -> nn.Module:
        return ClassificationModel(config, self.outputs)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        # Named only where rows belong together: other tasks' models are called as they always were.
        together = (batch["rows_I"],) if "rows_I" in batch else ()
        scores_IC: Tensor = model(batch["tokens_BN"], batch["mask_BN"], batch.get("types_BN"), *together)
        return scores_IC.float()

    def _weighted(self, losses_I: Tensor, labels_I: Tensor) -> Tensor:
        """Losses times the weight of the right class."""
        return losses_I if self.weights is None else losses_I * losses_I.new_tensor(self.weights)[labels_I]


class Classes(Pooled):
    """One of a few classes, by cross-entropy."""

    has_accuracy = True

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        return self._weighted(F.cross_entropy(scores_IC, labels_I, reduction="none"), labels_I)


class Value(Pooled):
    """A number, by squared error."""

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        return F.mse_loss(scores_IC[:, 0], labels_I, reduction="none")


class Questions(Pooled):
    """Several yes-or-no questions about each text, by binary cross-entropy; the scores are the logits of a yes."""

    constant: str
    """What the guess is called that gives every text the more frequent answers."""

    @abstractmethod
    def answers(self, labels_I: Tensor) -> Tensor:
        """What labels say to each question, 0 or 1, (I, C) float32."""


class Several(Questions):
    """Any number of labels of each text: the sum over the labels."""

    constant = "each label's majority"

    def answers(self, labels_IC: Tensor) -> Tensor:
        return labels_IC.float()

    def losses(self, scores_IC: Tensor, labels_IC: Tensor) -> Tensor:
        weights_C = None if self.weights is None else scores_IC.new_tensor(self.weights)
        losses_IC = F.binary_cross_entropy_with_logits(scores_IC, labels_IC, reduction="none", pos_weight=weights_C)
        return losses_IC.sum(1)


class Ordered(Questions):
    """One of some ordered classes: for each but the last, whether it is a higher one (Frank and Hall, 2001)."""

    constant = "median class"

    @property
    def outputs(self) -> int:
        return self.count - 1

    def answers(self, labels_I: Tensor) -> Tensor:
        return (labels_I[:, None] > torch.arange(self.outputs, device=labels_I.device)).float()

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        higher_IC = self.answers(labels_I).to(scores_IC.dtype)
        losses_IC = F.binary_cross_entropy_with_logits(scores_IC, higher_IC, reduction="none")
        return self._weighted(losses_IC.sum(1), labels_I)


class TokenLabels(Target):
    """0 or 1 of each token of examples of one length, by binary cross-entropy; the scores are the logits of a 1,
    (I, N).
    """

    def losses(self, scores_IN: Tensor, labels_IN: Tensor) -> Tensor:
        """The mean over the tokens, (I,)."""
        return F.binary_cross_entropy_with_logits(scores_IN, labels_IN.float(), reduction="none").mean(1)


class Candidates(Target):
    """One of each example's own candidates, by cross-entropy over them."""

    has_accuracy = True

    def build(self, config: ModelConfig) -> nn.Module:
        return CandidateModel(config)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        names = ("tokens_BN", "mask_BN", "global_BN", "positions_BC", "candidates_BC", "instance_B", "present_IA")
        scores_IC: Tensor = model(*(batch[name] for name in names))
        return scores_IC

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        return F.cross_entropy(scores_IC, labels_I, reduction="none")


def accuracy(scores_IC: Tensor, labels_I: Tensor) -> float:
    """Share of the examples whose highest score is at the label."""
    return float((scores_IC.argmax(-1) == labels_I).to(torch.float64).mean())


def vectors_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """What the head gets of each of a batch's examples, (I, E)."""
    assert isinstance(model, ClassificationModel)
    pooled_BE = model.pooled(batch["tokens_BN"], batch["mask_BN"], batch.get("types_BN"))
    return mean_over(pooled_BE, batch.get("rows_I"))
