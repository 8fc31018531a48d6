"""Clients' events as examples of a training run, and what is learned of them: the label's chance.

Shapes: B clients, N events, the newest first, C categorical and F numerical features; of scores I examples, C classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.model.events import EventModel, Network
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.finetuning.target import Classes
from nystromformer.tasks.transactions.store import Manifest, Stored

_EVENTS = ("categories_BNC", "numbers_BNF", "mask_BN")


class ClientExamples:
    """Some clients of a prepared folder; implements Examples.

    Args:
        name: what messages call them.
        clients: their numbers, ascending.
        length: events of the longest row; of more the oldest are left out.
    """

    def __init__(self, name: str, stored: Stored, clients: Ints, length: int) -> None:
        self.name, self.stored, self.clients, self.length = name, stored, clients, length
        whole = stored.lengths[clients]
        self.lengths: Ints = np.minimum(whole, length)
        self.rows: Ints = np.ones(len(clients), dtype=np.int64)
        self.tokens: Ints = self.lengths
        self.labels: Ints = stored.labels[clients]
        self.truncated = int((whole > length).sum())

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def fingerprint(self) -> str:
        manifest = self.stored.manifest
        stamps = {kind: stamp.sha256 for kind, stamp in sorted(manifest.files.items()) if kind != "clients"}
        fitted = [manifest.categories, manifest.numbers]
        digest = hashlib.sha256(f"{stamps} {fitted} {self.length};".encode())
        digest.update(np.ascontiguousarray(self.clients, dtype="<i8").data)
        return digest.hexdigest()

    def names(self) -> list[str]:
        """Of the clients."""
        names = self.stored.names()
        return [names[client] for client in self.clients.tolist()]

    def places(self, number: int) -> slice:
        """Where an example's events are in the folder's arrays, the oldest first."""
        end = int(self.stored.ends[self.clients[number]])
        return slice(end - int(self.lengths[number]), end)

    def batch(self, numbers: Ints, pad_to: int | None = None) -> dict[str, Tensor]:
        lengths_B = self.lengths[numbers]
        shape = (len(numbers), pad_to or int(lengths_B.max()))
        stored, manifest = self.stored, self.stored.manifest
        raw_BNC = np.full((*shape, len(manifest.categories)), -1, dtype=np.int32)
        raw_BNF = np.full((*shape, len(manifest.numbers)), np.nan, dtype=np.float32)
        for row, number in enumerate(numbers.tolist()):
            places, length = self.places(number), int(lengths_B[row])
            raw_BNC[row, :length] = stored.categories[places][::-1]
            raw_BNF[row, :length] = stored.numbers[places][::-1]
        ids = [each.ids_of(raw_BNC[:, :, column]) for column, each in enumerate(manifest.categories)]
        values = [each.scaled(raw_BNF[:, :, column]) for column, each in enumerate(manifest.numbers)]
        return {
            "categories_BNC": torch.from_numpy(np.stack(ids, 2) if ids else np.zeros((*shape, 0), np.int64)),
            "numbers_BNF": torch.from_numpy(np.stack(values, 2) if values else np.zeros((*shape, 0), np.float32)),
            "mask_BN": torch.from_numpy(np.arange(shape[1]) < lengths_B[:, None]),
            "labels": torch.from_numpy(self.labels[numbers]),
        }


@dataclass(frozen=True)
class Labels(Classes):
    """Whether a client's label is 1.

    Args:
        categories: ids of each categorical feature of events.
        numbers: how many numerical ones there are.
        network: that reads events.
    """

    categories: tuple[int, ...] = ()
    numbers: int = 0
    network: Network = "encoder"

    @classmethod
    def of(cls, manifest: Manifest, network: Network) -> Labels:
        """Of a folder's clients."""
        return cls(2, tuple(category.size for category in manifest.categories), len(manifest.numbers), network)

    def build(self, config: ModelConfig) -> nn.Module:
        return EventModel(config, self.categories, self.numbers, self.network, self.count)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores_IC: Tensor = model(*(batch[name] for name in _EVENTS))
        return scores_IC.float()
