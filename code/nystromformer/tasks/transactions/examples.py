"""Clients' events as examples of a training run, and what is learned of them: the label's chance, masked events.

Shapes: B clients, N events, the newest first, C categorical and F numerical features, K masked events; of scores I
examples, C classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.data.counter import random_uniform
from nystromformer.model.events import EventModel, MaskedEventModel, Network
from nystromformer.tasks.finetuning.examples import Ints
from nystromformer.tasks.finetuning.target import Classes, Target
from nystromformer.tasks.transactions.store import Manifest, Stored

_MASK_STREAM, _SHIFT_STREAM = 44, 45
_EVENTS = ("categories_BNC", "numbers_BNF", "mask_BN")


@dataclass(frozen=True)
class Features:
    """What the model knows of an event."""

    categories: tuple[int, ...]
    """Ids of each categorical feature; binned numbers are such."""
    numbers: int

    @classmethod
    def of(cls, manifest: Manifest) -> Features:
        binned = [number.size for number in manifest.numbers if number.form == "bins"]
        sizes = (*(category.size for category in manifest.categories), *binned)
        return cls(sizes, len(manifest.numbers) - len(binned))


class ClientExamples:
    """Some clients of a prepared folder; implements Examples.

    Args:
        name: what messages call them.
        clients: their numbers, ascending.
        length: events of the longest row; of more the oldest are left out.
        dropped: how many of the newest events are left out first, as long as one is left.
    """

    def __init__(self, name: str, stored: Stored, clients: Ints, length: int, dropped: int = 0) -> None:
        self.name, self.stored, self.clients, self.length, self.dropped = name, stored, clients, length, dropped
        whole = stored.lengths[clients]
        self._last = stored.ends[clients] - np.minimum(dropped, whole - 1)
        known = whole - np.minimum(dropped, whole - 1)
        self.lengths: Ints = np.minimum(known, length)
        self.rows: Ints = np.ones(len(clients), dtype=np.int64)
        self.tokens: Ints = self.lengths
        self.labels: Ints = stored.labels[clients]
        self.truncated = int((known > length).sum())

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def fingerprint(self) -> str:
        manifest = self.stored.manifest
        stamps = {kind: stamp.sha256 for kind, stamp in sorted(manifest.files.items()) if kind != "clients"}
        fitted = [manifest.categories, manifest.numbers]
        digest = hashlib.sha256(f"{stamps} {fitted} {self.length} {self.dropped};".encode())
        digest.update(np.ascontiguousarray(self.clients, dtype="<i8").data)
        return digest.hexdigest()

    def names(self) -> list[str]:
        """Of the clients."""
        names = self.stored.names()
        return [names[client] for client in self.clients.tolist()]

    def places(self, number: int) -> slice:
        """Where an example's events are in the folder's arrays, the oldest first."""
        end = int(self._last[number])
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
        values: list[NDArray[np.float32]] = []
        for column, each in enumerate(manifest.numbers):
            if each.form == "bins":
                ids.append(each.bins_of(raw_BNF[:, :, column]))
            else:
                values.append(each.scaled(raw_BNF[:, :, column]))
        return {
            "categories_BNC": torch.from_numpy(np.stack(ids, 2) if ids else np.zeros((*shape, 0), np.int64)),
            "numbers_BNF": torch.from_numpy(np.stack(values, 2) if values else np.zeros((*shape, 0), np.float32)),
            "mask_BN": torch.from_numpy(np.arange(shape[1]) < lengths_B[:, None]),
            "labels": torch.from_numpy(self.labels[numbers]),
        }


def shift_cyclically(batch: dict[str, Tensor], clients: Ints, seed: int, step: int) -> dict[str, Tensor]:
    """Rows turned by a random number of events: the newest ones follow on the oldest ones (the lecture's cycle shift).

    Args:
        clients: a number of each row, which with seed and step decides by how many.
    """
    lengths_B = batch["mask_BN"].sum(1).numpy()
    shifts_B = (random_uniform(seed, _SHIFT_STREAM, step, clients) * lengths_B).astype(np.int64)
    width = batch["mask_BN"].shape[1]
    places_BN = np.tile(np.arange(width), (len(clients), 1))
    turned_BN = (places_BN + shifts_B[:, None]) % lengths_B[:, None]
    turned = torch.from_numpy(np.where(places_BN < lengths_B[:, None], turned_BN, places_BN))[:, :, None]
    names = ("categories_BNC", "numbers_BNF")
    return batch | {name: batch[name].gather(1, turned.expand_as(batch[name])) for name in names}


def mask_events(batch: dict[str, Tensor], clients: Ints, share: float, seed: int, step: int) -> dict[str, Tensor]:
    """The same with positions of events to guess, a share of each row's and at least one.

    Args:
        clients: as of shift_cyclically.
    """
    mask_BN = batch["mask_BN"].numpy()
    drawn_BN = random_uniform(seed, _MASK_STREAM, step, clients[:, None], np.arange(mask_BN.shape[1]))
    order_BN = np.argsort(np.where(mask_BN, drawn_BN, 2.0), axis=1, kind="stable")
    counts_B = np.maximum(1, np.round(share * mask_BN.sum(1)).astype(np.int64))
    most = int(counts_B.max())
    counted_BK = np.arange(most) < counts_B[:, None]
    return batch | {
        "positions_BK": torch.from_numpy(np.where(counted_BK, order_BN[:, :most], 0)),
        "counted_BK": torch.from_numpy(counted_BK),
    }


@dataclass(frozen=True)
class Labels(Classes):
    """Whether a client's label is 1.

    Args:
        features: of events.
        network: that reads them.
    """

    features: Features = Features((), 0)
    network: Network = "encoder"

    def build(self, config: ModelConfig) -> nn.Module:
        return EventModel(config, self.features.categories, self.features.numbers, self.network, self.count)

    def scores(self, model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        scores_IC: Tensor = model(*(batch[name] for name in _EVENTS))
        return scores_IC.float()


@dataclass(frozen=True)
class MaskedEvents(Target):
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
