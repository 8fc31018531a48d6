"""What `run_predict.py` does once its flags are read."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.runs.record import open_run
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.source import open_place
from nystromformer.tasks.prediction.folder import local_engine, named_columns, predict_folder
from nystromformer.tasks.prediction.inputs import parquet_folder
from nystromformer.tasks.prediction.loaded import is_experiment, load_finished
from nystromformer.tasks.prediction.on_ray import ray_engine
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.predictor import Predictor
from nystromformer.tasks.prediction.stream import Job, predict_table
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import load_clients_run, predict_clients

logger = logging.getLogger(__name__)


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
    if not (embed and is_experiment(folder)) and open_run(folder).kind == CLIENTS.command:
        if text or id_column or skip_empty or embed or baseline or on_ray or part:
            raise UserError(f"{folder}: reads clients' events: expected only --input, --out and --device")
        predict_clients(load_clients_run(folder, Path(place), device, "best"), out)
        return
    if (source := parquet_folder(place)) is not None:
        predictor = Predictor(folder, device, embed, baseline)
        engine = local_engine()
        if on_ray:
            # A worker takes the device that Ray gives it, of the kind that was found here.
            kind = predictor.finished.decisive.get("device", "cpu")
            predictor = Predictor(folder, kind, embed, baseline)
            engine = ray_engine(kind)
        predict_folder(predictor, source, out, text, id_column, skip_empty, engine, part)
        return
    if on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    output_kind(out)
    run = load_finished(folder, device, embed, baseline)
    table = open_place(place, Path(), "test", Reading(encoding=encoding))
    columns, name = named_columns(run.recipe.text, table, text, id_column)
    predict_table(run, Job(table, columns, name, skip_empty), out)
    logger.info("%s: %s", "vectors" if embed else "predictions", out)
