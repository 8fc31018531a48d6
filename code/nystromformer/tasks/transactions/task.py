"""Clients' events as a fine-tuning task: examples of a training run, and what is learned of them: the label's chance.

Shapes: B clients, N events, the newest first, C categorical and F numerical features; of scores I examples, C classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nystromformer.config import ModelConfig
from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.model.events import EventModel, Network
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Classes, Target
from nystromformer.tasks.transactions.declaration import TASK
from nystromformer.tasks.transactions.metrics import gini, interval, score
from nystromformer.tasks.transactions.store import Manifest, Stored, open_stored
from nystromformer.wording import number_of

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
            "numbers_BNF": torch.from_numpy(np.stack(values, 2)),
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


class Transactions(Definition):
    """Labels of a prepared folder's clients.

    Args:
        folder: of the data.
        name: of the data, in folders and tables.
        network: that reads the events.
    """

    kind = "transactions"
    main_metric = "gini"

    def __init__(self, folder: Path, name: str, network: Network = "encoder") -> None:
        self.folder = folder
        self.choices: Mapping[str, Any] = {"data": name, "network": network}
        self.name = f"transactions/{TASK.name(self.choices).replace(' ', '-')}"
        self.stored = open_stored(folder)
        self.target: Target = (labels := Labels.of(self.stored.manifest, network))
        self.kinds = max(1, sum(labels.categories))  # all ids of categories together

    def load(self, loading: Loading) -> Splits:
        if not len(whole := self.stored.clients_of("train")):
            raise UserError(
                f"{self.folder}: expected clients to train on, found none: what `prepare.py new` wrote is for "
                "run_predict.py"
            )
        train, warnings = self._examples("train", loading, loading.train_rows), []
        if len(train) < len(whole):
            warnings = [f"trained on {len(train):,} of the {len(whole):,} clients (--train_rows)"]
        validation = self._examples("validation", loading)
        notes = [*map(_describe, (train, validation)), *self.stored.manifest.notes]
        return Splits(train, {"": validation}, warnings, notes)

    def texts(self) -> dict[str, Any] | None:
        """What clients to predict must have in common with these."""
        return {"features": self.stored.manifest.features}

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return score(_chances(scores_NC), labels_N.numpy())

    def test(self, loading: Loading) -> dict[str, Examples]:
        """The out-of-time clients."""
        return {"test": self._examples("test", loading)}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`, the chance of each client; `test.json`, metrics and the Gini's interval."""
        for name, key, examples in (("validation", "", splits.validation[""]), ("test", "test", test["test"])):
            clients = cast(ClientExamples, examples)
            chances = [f"{chance:.9f}" for chance in _chances(scores[key]).tolist()]
            rows = zip(clients.names(), map(str, clients.labels.tolist()), chances, strict=True)
            write_rows(folder / f"{name}.tsv", ("client", "label", "probability"), list(rows))
        labels, chances_n = cast(ClientExamples, test["test"]).labels, _chances(scores["test"])
        figures = score(chances_n, labels)
        between = interval(partial(gini, chances_n, labels), len(labels))
        write_json(folder / "test.json", {"clients": len(labels), **figures, "interval": between})
        return figures

    def _examples(self, split: str, loading: Loading, most: int | None = None) -> ClientExamples:
        clients = self.stored.clients_of(split)
        if most is not None and most < len(clients):
            clients = clients[subset(len(clients), most)]
        return ClientExamples(f"{self.name} {split}", self.stored, clients, loading.length)


def _chances(scores_NC: Tensor) -> Any:
    """Of label 1."""
    return scores_NC.double().softmax(1)[:, 1].numpy()


def _describe(examples: ClientExamples) -> str:
    lengths = examples.lengths
    cut = (
        f"the oldest events of {number_of(examples.truncated, 'client')} left out" if examples.truncated else "all seen"
    )
    return (
        f"{examples.name}: {number_of(len(examples), 'client')} of {lengths.min():,} to {lengths.max():,} events "
        f"(median {int(np.median(lengths)):,}), {cut}; {100 * float((examples.labels == 1).mean()):.1f} % have label 1"
    )
