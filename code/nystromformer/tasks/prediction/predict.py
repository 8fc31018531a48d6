"""What `run_predict.py` does once its flags are read."""

from __future__ import annotations

import logging
from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.runs.record import open_run
from nystromformer.runs.settings import Predict
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.source import open_place
from nystromformer.tasks.documents.table import column_named, columns_named
from nystromformer.tasks.prediction.engines import is_experiment
from nystromformer.tasks.prediction.folder import check_columns, local_engine, predict_folder
from nystromformer.tasks.prediction.inputs import parquet_folder
from nystromformer.tasks.prediction.loaded import load_finished
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
    weights: Predict,
    reading: Reading,
    skip_empty: bool,
    tokens_at_a_time: int | None,
    device: str,
    baseline: bool = False,
    embed: bool = False,
    on_ray: bool = False,
    address: str | None = None,
    workers: int | None = None,
    part: slice | None = None,
) -> None:
    """Predict a table, or a folder of Parquet files, with a finished run.

    Args:
        place: of the table, as `open_place` takes it; of a folder with Parquet files, as `parquet_folder` takes it; or
            for a run on clients' events of a prepared folder.
        text: its columns of texts, as they were typed; None: those of the data that the run learned from.
        baseline: predict with the regression on words that is kept beside the run.
        embed: write the encoder's vectors instead of predictions.
        on_ray: have a Ray cluster predict the folder, the one at `address`, with at most so many workers.
        part: of the folder's files, as of predict_folder.

    Raises:
        UserError: the run cannot predict, or the table is none that it can; nothing is written then.
    """
    if not (embed and is_experiment(folder)) and open_run(folder).kind == CLIENTS.command:
        asked = {"--text": text is not None, "--id": id_column is not None, "--skip_empty": skip_empty}
        asked |= {"--baseline": baseline, "--embed": embed, "--engine": on_ray}
        asked |= {"--array_index": part is not None, "--tokens_at_a_time": tokens_at_a_time is not None}
        if given := [flag for flag, is_given in asked.items() if is_given] + reading.given:
            raise UserError(f"{folder}: reads clients' events: expected no {given[0]}")
        predict_clients(load_clients_run(folder, Path(place), device, weights), out)
        return
    if (source := parquet_folder(place)) is not None:
        if reading.given:
            raise UserError(f"{reading.given[0]}: expected a file with it, found a folder of Parquet files: {place}")
        predictor = Predictor(folder, device, weights, embed, baseline)
        engine = local_engine()
        if on_ray:
            # A worker takes the device that Ray gives it, of the kind that was found here.
            kind = predictor.finished.decisive.get("device", "cpu")
            predictor = Predictor(folder, kind, weights, embed, baseline)
            engine = ray_engine(address, workers, kind)
        predict_folder(predictor, source, out, text, id_column, skip_empty, tokens_at_a_time, engine, part)
        return
    if on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    output_kind(out)
    run = load_finished(folder, device, weights, embed, baseline)
    table = open_place(place, Path(), "test", reading)
    columns = run.recipe.text if text is None else columns_named("--text", text, table)
    check_columns(run.recipe.text, columns, text, table)
    name = None if id_column is None else column_named("--id", id_column, table)
    logger.info("%s, %s", run.task, run.weights)
    at_a_time = tokens_at_a_time or run.tokens_at_a_time
    predict_table(run, Job(table, columns, name, out, skip_empty, at_a_time))
    logger.info("%s: %s", "vectors" if embed else "predictions", out)
