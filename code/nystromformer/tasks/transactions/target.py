"""What is learned of clients: the label's chance, and what masked events were.

Shapes: I examples of a batch, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model.events import EventModel, MaskedEventModel, Network
from nystromformer.tasks.finetuning.target import Classes, Plain
from nystromformer.tasks.transactions.examples import Features

_EVENTS = ("categories_BNC", "numbers_BNF", "mask_BN")


@dataclass(frozen=True)
class Labels(Classes):
    """Whether a client's label is 1.

    Args:
        features: of events.
        network: that reads them.
    """

    features: Features = Features((), 0)  # noqa: RUF009  # immutable
    network: Network = "encoder"

    def build(self, config: ModelConfig) -> nn.Module:
        return EventModel(config, self.features.categories, self.features.numbers, self.network, self.count)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores_IC: Tensor = model(*(batch[name] for name in _EVENTS))
        return scores_IC.float()


@dataclass(frozen=True)
class MaskedEvents(Plain):
    """What masked events were; scores are mean loss, sum of right features and number of masked events of each row."""

    features: Features
    network: Network
    has_accuracy = False

    def build(self, config: ModelConfig) -> nn.Module:
        return MaskedEventModel(config, self.features.categories, self.features.numbers, self.network)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        sums_I3: Tensor = model(*(batch[name] for name in (*_EVENTS, "positions_BK", "counted_BK")))
        return torch.cat([sums_I3[:, :1] / sums_I3[:, 2:], sums_I3[:, 1:]], dim=1)

    def losses(self, scores_IC: Tensor, labels_I: Tensor) -> Tensor:
        return scores_IC[:, 0]
