"""A finished run on other clients: the chance of each, from where an earlier start was stopped.

Shapes: n clients.
"""

from __future__ import annotations

import csv
import io
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.files.parts import MARK, open_parts
from nystromformer.files.writing import check_new_file, sha256_of, write_text
from nystromformer.runs.record import Run, open_run
from nystromformer.runs.settings import Predict
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.transactions.examples import ClientExamples, Features, Labels
from nystromformer.tasks.transactions.store import Stored, open_stored
from nystromformer.training import Device, choose_device
from nystromformer.training.checkpoint import epoch_name, load_weights, read_checkpoint
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

CLIENTS_AT_A_TIME = 4096
"""In a part of the work that is kept."""
EVENTS_AT_A_TIME = {"cpu": 8192, "cuda": 65_536}


@dataclass(frozen=True)
class ClientsRun:
    """A finished run. Its weights are read when it first predicts."""

    run: Run
    config: ExperimentConfig
    weights: Path
    device: Device
    stored: Stored

    def chances(self, clients: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of some clients of the folder, of label 1."""
        rows = ClientExamples("clients", self.stored, clients, self.run.length)
        budget = EVENTS_AT_A_TIME[self.device.device.type]
        pad_to = self.run.settings.pad_to
        found = np.zeros(len(clients), dtype=np.float32)
        with torch.inference_mode(), self.device.autocast():
            for part in fit_to_budget(np.arange(len(rows)), rows.lengths, rows.rows, budget, 1, pad_to):
                batch = {name: value.to(self.device.device) for name, value in rows.batch(part, pad_to).items()}
                scores = self._target.scores(self.model, batch)
                found[part] = scores.double().softmax(1)[:, 1].float().cpu().numpy()
        return found

    @property
    def _target(self) -> Labels:
        return Labels(2, Features.of(self.stored.manifest), self.run.choices["network"])

    @cached_property
    def model(self) -> nn.Module:
        """With the run's weights, on the device."""
        with torch.inference_mode(False):
            model = self._target.build(self.config.model)
            load_weights(model, read_checkpoint(self.weights)["model"], self.weights)
            return model.to(self.device.device).eval()


def load_clients_run(folder: Path, data: Path, device: str, weights: Predict) -> ClientsRun:
    """A finished run of run_transactions.py, and clients to predict.

    Raises:
        UserError: no such run, its weights are gone, or the clients were not prepared as those that it learned from.
    """
    run, stored = open_run(folder), open_stored(data)
    features = (run.texts or {}).get("features")
    if run.choices.get("events") or features is None:
        raise UserError(f"{folder}: expected a run that learned labels, found one of masked events")
    if stored.manifest.features != features:
        raise UserError(
            f"{data}: expected clients with the columns, vocabularies and scales that the run learned from: prepare "
            "them with `python experiments/transactions/prepare.py new --like FOLDER`, the folder of the run's data"
        )
    path = folder / f"{epoch_name(run.choose(weights).epoch)}.model"
    config = experiment_config(read_checkpoint(path, mmap=True)["config"], str(path))
    return ClientsRun(run, config, path, choose_device(device, config.model.mixed_precision), stored)


def predict_clients(run: ClientsRun, out: Path) -> None:
    """Write the chance of each client of a folder into a TSV or CSV file that appears once it is whole.

    Raises:
        UserError: the file is there, its name ends otherwise, or parts of another prediction are where the parts go.
    """
    delimiter = {".tsv": "\t", ".csv": ","}.get(out.suffix.lower())
    if delimiter is None:
        raise UserError(f"--out {out}: expected a file that ends in .tsv or .csv")
    folder = out.with_name(f"{out.name}.parts")
    if not (folder / MARK).is_file():
        check_new_file("--out", out)
    everyone = np.arange(len(run.stored.ends))
    facts: dict[str, Any] = {
        "clients": {kind: stamp.sha256 for kind, stamp in run.stored.manifest.files.items()},
        "weights (--predict)": sha256_of(run.weights),
        "device": str(run.device),
    }
    with open_parts(folder, "run_predict.py", facts, [out], advice="name another file with --out") as parts:
        if not out.exists():
            found = []
            for number, clients in enumerate(np.array_split(everyone, max(1, -(-len(everyone) // CLIENTS_AT_A_TIME)))):
                content = parts.read(f"{number:08d}")
                if content is None:
                    content = run.chances(clients).astype("<f4").tobytes()
                    with parts.write(f"{number:08d}") as file:
                        file.write(content)
                    logger.info("%s of %s", f"{int(clients[-1]) + 1:,}", number_of(len(everyone), "client"))
                found.append(np.frombuffer(content, dtype="<f4"))
            names = run.stored.names()
            chances = [f"{chance:.9f}" for chance in np.concatenate(found).tolist()]
            text = io.StringIO()
            writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
            writer.writerows([("client", "probability"), *zip(names, chances, strict=True)])
            write_text(out, text.getvalue())
        parts.remove()
    logger.info("%s: %s", out, number_of(len(everyone), "client"))
