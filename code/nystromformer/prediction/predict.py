"""What `run_predict.py` does once its flags are read."""

from __future__ import annotations

import importlib
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.prediction.folder import parquet_folder, predict_folder
from nystromformer.prediction.predictor import Predictor
from nystromformer.prediction.tables import predict_table
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.source import open_place
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import load_clients_run, predict_clients


def run_predict(
    folder: Path,
    place: str,
    out: Path,
    text: str | None,
    id_column: str | None,
    encoding: str,
    skip_empty: bool,
    embed: bool,
    baseline: bool,
    on_ray: bool,
    part: slice | None,
    device: str,
) -> None:
    """Predict a table, or a folder of Parquet files, with a finished run.

    Args:
        place: of the table, as `open_place` takes it; of a folder with Parquet files, as `parquet_folder` takes it; or
            for a run on clients' events of a prepared folder.
        text: its columns of texts, as they were typed; None: those of the data that the run learned from.
        embed, baseline: write the encoder's vectors, or predict with the regression on words that is kept beside the
            run.
        on_ray: have a Ray cluster predict the folder.
        part: of the folder's files, as of predict_folder.

    Raises:
        UserError: the run cannot predict, or the table is none that it can; nothing is written then.
    """
    if on_ray:
        importlib.import_module("ray")  # which may be missing
    if embed and baseline:
        raise UserError("--baseline: expected no --embed with it: the baseline has no encoder")
    predictor = Predictor(folder, device, embed, baseline, skip_empty=skip_empty)
    if predictor.run is not None and predictor.run.kind == CLIENTS.command:
        if text or id_column or skip_empty or embed or baseline or on_ray or part:
            raise UserError(f"{folder}: reads clients' events: expected only --input, --out and --device")
        predict_clients(load_clients_run(folder, Path(place), device, "best"), out)
    elif (source := parquet_folder(place)) is not None:
        predict_folder(predictor, source, out, text, id_column, on_ray, part)
    elif on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    else:
        table = open_place(place, Path(), "test", Reading(encoding=encoding))
        predict_table(predictor, table, out, text, id_column)
