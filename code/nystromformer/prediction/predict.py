"""What `run_predict.py` does once its flags are read."""

from __future__ import annotations

from pathlib import Path

from nystromformer.errors import UserError
from nystromformer.prediction.folder import parquet_folder, predict_folder
from nystromformer.prediction.predictor import Predictor
from nystromformer.prediction.tables import predict_table
from nystromformer.tasks.documents.reading import Reading
from nystromformer.tasks.documents.source import open_place
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import predict_clients


def run_predict(
    predictor: Predictor,
    place: str,
    out: Path,
    text: str | None,
    id_column: str | None,
    encoding: str,
    on_ray: bool,
    part: slice | None,
) -> None:
    """Predict a table, a folder of Parquet files or, with a run on clients' events, a prepared folder.

    Args:
        place: of what is predicted, as `open_place` or `parquet_folder` takes it.
        text, id_column, on_ray, part: as of predict_folder.

    Raises:
        UserError: the run cannot predict, or the table is none that it can; nothing is written then.
    """
    own = predictor
    if own.run is not None and own.run.kind == CLIENTS.command:
        if text or id_column or own.skip_empty or own.embed or own.baseline or on_ray or part:
            raise UserError(f"{own.folder}: reads clients' events: expected only --input, --out and --device")
        predict_clients(own.run, Path(place), out, own.device)
    elif (source := parquet_folder(place)) is not None:
        predict_folder(predictor, source, out, text, id_column, on_ray, part)
    elif on_ray or part is not None:
        flag = "--engine ray" if on_ray else "--array_index"
        raise UserError(f"{flag}: expected --input to be a folder of Parquet files, found {place}")
    else:
        table = open_place(place, Path(), "test", Reading(encoding=encoding))
        predict_table(predictor, table, out, text, id_column)
