"""What clients' events say of their labels, as a fine-tuning task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.model.events import Network
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Target
from nystromformer.tasks.transactions.declaration import TASK
from nystromformer.tasks.transactions.examples import ClientExamples, Labels
from nystromformer.tasks.transactions.metrics import intervals, score
from nystromformer.tasks.transactions.store import open_stored
from nystromformer.wording import number_of


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
        if not len(self.stored.clients_of("train")):
            raise UserError(
                f"{self.folder}: expected clients to train on, found none: what `prepare.py new` wrote is for "
                "run_predict.py"
            )
        train, warnings = self._examples("train", loading), []
        if loading.train_rows is not None and loading.train_rows < len(train):
            warnings = [f"trained on {loading.train_rows:,} of the {len(train):,} clients (--train_rows)"]
            train = self._of(train.clients[subset(len(train), loading.train_rows)], "train", loading)
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
        """`validation.tsv` and `test.tsv`, the chance of each client; `test.json`, metrics with their intervals over
        clients.
        """
        for name, key, examples in (("validation", "", splits.validation[""]), ("test", "test", test["test"])):
            clients = cast(ClientExamples, examples)
            chances = [f"{chance:.9f}" for chance in _chances(scores[key]).tolist()]
            rows = zip(clients.names(), map(str, clients.labels.tolist()), chances, strict=True)
            write_rows(folder / f"{name}.tsv", ("client", "label", "probability"), list(rows))
        labels, chances_n = cast(ClientExamples, test["test"]).labels, _chances(scores["test"])
        figures = score(chances_n, labels)
        more = {"intervals": intervals(chances_n, labels), "ceiling": self.stored.manifest.ceiling.get("test")}
        write_json(folder / "test.json", {"clients": len(labels), **figures, **more})
        return figures

    def _examples(self, split: str, loading: Loading) -> ClientExamples:
        return self._of(self.stored.clients_of(split), split, loading)

    def _of(self, clients: Ints, split: str, loading: Loading) -> ClientExamples:
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
