"""A finished run on other clients: the chance of each, from where an earlier start was stopped.

Shapes: n clients.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from nystromformer.config import experiment_config
from nystromformer.errors import UserError
from nystromformer.files.parts import open_parts
from nystromformer.files.writing import NewFile
from nystromformer.runs.record import Run
from nystromformer.tasks.finetuning.plan import fit_to_budget
from nystromformer.tasks.transactions.store import open_stored
from nystromformer.tasks.transactions.task import ClientExamples, Labels
from nystromformer.training import choose_device
from nystromformer.training.checkpoint import epoch_name, load_weights, read_checkpoint
from nystromformer.wording import number_of

logger = logging.getLogger(__name__)

CLIENTS_AT_A_TIME = 4096
"""In a part of the work that is kept."""
EVENTS_AT_A_TIME = {"cpu": 8192, "cuda": 65_536}


def predict_clients(run: Run, data: Path, out: Path, device_name: str) -> None:
    """Write the chance of each client of a folder into a TSV or CSV file that appears once it is whole.

    Args:
        run: of run_transactions.py; its best epoch predicts.
        data: the folder, as `prepare.py new` wrote it.
    """
    stored = open_stored(data)
    delimiter = {".tsv": "\t", ".csv": ","}.get(out.suffix.lower())
    if delimiter is None:
        raise UserError(f"--out {out}: expected a file that ends in .tsv or .csv")
    if stored.manifest.features != (run.texts or {}).get("features"):
        raise UserError(
            f"{data}: expected clients with the columns, vocabularies and scales that the run learned from: prepare "
            "them with `python experiments/transactions/prepare.py new --like FOLDER`, the folder of the run's data"
        )
    path = run.folder / f"{epoch_name(run.best.epoch)}.model"
    content = read_checkpoint(path)
    config = experiment_config(content["config"], str(path))
    device = choose_device(device_name, config.model.mixed_precision)
    target = Labels.of(stored.manifest, run.choices["network"])
    model = target.build(config.model)
    load_weights(model, content["model"], path)
    model.to(device.device).eval()

    def rows_of(clients: NDArray[np.int64]) -> bytes:
        """Of some clients: names, and chances of label 1."""
        rows = ClientExamples("clients", stored, clients, run.length)
        budget, pad_to = EVENTS_AT_A_TIME[device.device.type], run.settings.pad_to
        found = np.zeros(len(clients), dtype=np.float32)
        with torch.inference_mode(), device.autocast():
            for part in fit_to_budget(np.arange(len(rows)), rows.lengths, rows.rows, budget, 1, pad_to):
                batch = {name: value.to(device.device) for name, value in rows.batch(part, pad_to).items()}
                scores = target.scores(model, batch)
                found[part] = scores.double().softmax(1)[:, 1].float().cpu().numpy()
        table = pd.DataFrame({"client": rows.names(), "probability": [f"{chance:.9f}" for chance in found.tolist()]})
        text: str = table.to_csv(header=False, index=False, sep=delimiter, lineterminator="\n")
        return text.encode()

    everyone = np.arange(len(stored.ends))
    facts = {
        "clients": {kind: stamp.sha256 for kind, stamp in stored.manifest.files.items()},
        "weights": content["sha256"],
        "device": str(device),
    }
    place, advice = out.with_name(f"{out.name}.parts"), "name another file with --out"
    with open_parts(place, "run_predict.py", facts, [out], advice=advice) as parts:
        if not out.exists():
            with NewFile(out) as whole:
                whole.write(f"client{delimiter}probability\n".encode())
                for number, clients in enumerate(np.array_split(everyone, -(-len(everyone) // CLIENTS_AT_A_TIME) or 1)):
                    found = parts.read(f"{number:08d}")
                    if found is None:
                        found = rows_of(clients)
                        with parts.write(f"{number:08d}") as file:
                            file.write(found)
                        logger.info("%s of %s", f"{int(clients[-1]) + 1:,}", number_of(len(everyone), "client"))
                    whole.write(found)
        parts.remove()
    logger.info("%s: %s", out, number_of(len(everyone), "client"))
