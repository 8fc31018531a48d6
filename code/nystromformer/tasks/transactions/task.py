"""What clients' events say of their labels, as a fine-tuning task; and masked events, to pretrain on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.files.writing import write_json
from nystromformer.model.events import Network
from nystromformer.runs.record import open_run
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import pretrained_in
from nystromformer.tasks.finetuning.definition import Definition, Loading, Splits
from nystromformer.tasks.finetuning.examples import Examples, Ints, Masked
from nystromformer.tasks.finetuning.opening import Begin, Start
from nystromformer.tasks.finetuning.plan import subset
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Target
from nystromformer.tasks.transactions.declaration import TASK
from nystromformer.tasks.transactions.examples import (
    ClientExamples,
    Features,
    Labels,
    MaskedEvents,
    mask_events,
    shift_cyclically,
)
from nystromformer.tasks.transactions.metrics import difference_interval, draw_reliability, gini, intervals, score
from nystromformer.tasks.transactions.store import open_stored
from nystromformer.training.checkpoint import epoch_name, read_checkpoint
from nystromformer.wording import number_of

MASKED = 0.15
"""Share of a row's events that pretraining masks."""
SHIFTED = "test_shifted"
"""The test clients without their newest event."""
SHIFTED_CHANCE = "probability_shifted"
"""The column of their chances."""


class Transactions(Definition):
    """Labels of a prepared folder's clients.

    Args:
        folder: of the data.
        name: of the data, in folders and tables.
        network: that reads the events.
        cycle_shift: whether training turns rows by a random number of events.
    """

    kind = "transactions"
    main_metric = "gini"

    def __init__(self, folder: Path, name: str, network: Network = "encoder", cycle_shift: bool = False) -> None:
        self.folder, self.network, self.cycle_shift = folder, network, cycle_shift
        self.choices: Mapping[str, Any] = {"data": name, "network": network, "cycle_shift": cycle_shift}
        self.name = f"transactions/{TASK.name(self.choices).replace(' ', '-')}"
        self.stored = open_stored(folder)
        self.features = Features.of(self.stored.manifest)
        self.target: Target = Labels(2, self.features, network)

    @property
    def kinds(self) -> int:  # type: ignore[override]  # never set
        """All ids of categories together."""
        return max(1, sum(self.features.categories))

    def load(self, loading: Loading) -> Splits:
        if empty := [split for split, facts in self.stored.manifest.splits.items() if not facts.labelled]:
            raise UserError(
                f"{self.folder}: expected clients with labels in each split, found none in {' and '.join(empty)}: what "
                "`prepare.py new` wrote is for run_predict.py"
            )
        self.stored.verify()
        train, warnings = self._examples("train", loading), []
        if loading.train_rows is not None and loading.train_rows < len(train):
            warnings = [f"trained on {loading.train_rows:,} of the {len(train):,} clients (--train_rows)"]
            train = self._of(train.clients[subset(len(train), loading.train_rows)], "train", loading)
        validation = self._examples("validation", loading)
        notes = [*map(_describe, (train, validation)), *self.stored.manifest.notes]
        return Splits(train, {"": validation}, warnings, notes, "cycle_shift" * self.cycle_shift)

    def texts(self, loading: Loading) -> dict[str, Any] | None:
        """What clients to predict must have in common with these."""
        return {"features": self.stored.manifest.features}

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        return shift_cyclically(batch, numbers, seed, step) if self.cycle_shift else batch

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        return score(_chances(scores_NC), labels_N.numpy())

    def test(self, loading: Loading) -> dict[str, Examples]:
        """The out-of-time clients, and the same without their newest event."""
        clients = self.stored.clients_of("test", labelled=True)
        shifted = ClientExamples(f"{self.name} test, shifted", self.stored, clients, loading.length, dropped=1)
        return {"test": self._examples("test", loading), SHIFTED: shifted}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """`validation.tsv` and `test.tsv`, the chance of each client, of test also without its newest event;
        `test.json`, metrics with their intervals over clients; `reliability.png`.
        """
        columns = {"validation": {"probability": ""}, "test": {"probability": "test", SHIFTED_CHANCE: SHIFTED}}
        for name, keys in columns.items():
            clients = cast(ClientExamples, test[name] if name in test else splits.validation[""])
            chances = [[f"{chance:.9f}" for chance in _chances(scores[key]).tolist()] for key in keys.values()]
            rows = zip(clients.names(), map(str, clients.labels.tolist()), *chances, strict=True)
            write_rows(folder / f"{name}.tsv", ("client", "label", *keys), list(rows))
        labels = cast(ClientExamples, test["test"]).labels
        chances_n, shifted_n = _chances(scores["test"]), _chances(scores[SHIFTED])
        figures = score(chances_n, labels)
        shifted = gini(shifted_n, labels)
        difference = difference_interval(shifted_n, chances_n, labels)
        write_json(
            folder / "test.json",
            {
                "clients": len(labels),
                **figures,
                "gini_shifted": shifted,
                "intervals": {**intervals(chances_n, labels), "gini_shifted_difference": difference},
                "ceiling": self.stored.manifest.ceiling.get("test"),
            },
        )
        draw_reliability(folder / "reliability.png", chances_n, labels, figures["calibration_error"])
        return figures | {"gini_shifted": shifted}

    def _examples(self, split: str, loading: Loading) -> ClientExamples:
        return self._of(self.stored.clients_of(split, labelled=True), split, loading)

    def _of(self, clients: Ints, split: str, loading: Loading) -> ClientExamples:
        return ClientExamples(f"{self.name} {split}", self.stored, clients, loading.length)


class MaskedTransactions(Transactions):
    """Masked events of the training clients, those without a label too: what pretraining learns."""

    main_metric = "event_score"
    predicts = False

    def __init__(self, folder: Path, name: str, network: Network = "encoder") -> None:
        super().__init__(folder, name, network)
        self.name += "-events"
        self.choices = {**self.choices, "events": True}
        self.target = MaskedEvents(self.features, network)

    def load(self, loading: Loading) -> Splits:
        everyone = self.stored.clients_of("train", labelled=False)
        train = ClientExamples(f"{self.name} train", self.stored, everyone, loading.length)
        splits = super().load(replace(loading, train_rows=None))
        validation = cast(ClientExamples, splits.validation[""])
        masked = Masked(validation, MASKED, lambda batch, n: mask_events(batch, validation.clients[n], MASKED, 0, 0))
        return replace(splits, train=train, validation={"": masked})

    def noise(self, batch: dict[str, Tensor], numbers: Ints, seed: int, step: int) -> dict[str, Tensor]:
        return mask_events(batch, numbers, MASKED, seed, step)

    def metrics(self, scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
        right, counted = scores_NC[:, 1:].sum(0, dtype=torch.float64).tolist()
        return {"event_score": right / counted}

    def test(self, loading: Loading) -> dict[str, Examples]:
        """None."""
        return {}

    def write(
        self, splits: Splits, test: Mapping[str, Examples], scores: Mapping[str, Tensor], folder: Path
    ) -> dict[str, float]:
        """Nothing."""
        return {}


def begin_with(folder: Path, labels: Transactions) -> Begin:
    """Gives the encoder of a run's best epoch.

    Raises:
        UserError: no finished run is there, or it learned from other columns.
    """
    run = open_run(folder)
    if run.kind != labels.kind or (run.texts or {}).get("features") != labels.stored.manifest.features:
        raise UserError(
            f"--from_run {folder}: expected a run of run_transactions.py on the columns, vocabularies and scales of "
            f"{labels.folder}"
        )
    if run.choices["network"] != labels.network:
        raise UserError(f"--from_run {folder}: expected --architecture {run.choices['network']} with it")
    path = folder / f"{epoch_name(run.best.epoch)}.model"

    def begin(experiment: Experiment) -> Start:
        return pretrained_in(read_checkpoint(path), path, run.family), None

    return begin


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
