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
from nystromformer.tasks.prediction.loaded import Embedding, LoadedRun, load_run, load_words
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.stream import AnyFinished, Job, predict_table
from nystromformer.tasks.transactions.declaration import TASK as CLIENTS
from nystromformer.tasks.transactions.predict import load_clients_run, predict_clients
from nystromformer.wording import first_names

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
) -> None:
    """Predict a table with a finished run.

    Args:
        place: of the table, as `open_place` takes it, or for a run on clients' events of a prepared folder.
        text: its columns of texts, as they were typed; None: those of the data that the run learned from.
        baseline: predict with the regression on words that is kept beside the run.
        embed: write the encoder's vectors instead of predictions.

    Raises:
        UserError: the run cannot predict, or the table is none that it can; nothing is written then.
    """
    if open_run(folder).kind == CLIENTS.command:
        asked = {"--text": text is not None, "--id": id_column is not None, "--skip_empty": skip_empty}
        asked |= {"--baseline": baseline, "--embed": embed}
        if given := [flag for flag, is_given in asked.items() if is_given] + reading.given:
            raise UserError(f"{folder}: reads clients' events: expected no {given[0]}")
        predict_clients(load_clients_run(folder, Path(place), device, weights), out)
        return
    output_kind(out)
    run: AnyFinished = load_words(folder) if baseline else load_run(folder, device, weights)
    if isinstance(run, LoadedRun) and embed:
        run = Embedding(run)
    table = open_place(place, None, Path(), "test", reading)
    columns = run.recipe.text if text is None else columns_named("--text", text, table)
    if missing := [name for name in columns if name not in table.columns]:
        raise UserError(
            f"{table.name}: expected the columns of the data that the run learned from ({', '.join(columns)}), found "
            f"no {first_names(missing)}; it has {first_names(table.columns)}: name others with --text"
        )
    if len(columns) != len(run.recipe.text):
        raise UserError(
            f"--text {text}: expected {len(run.recipe.text)} of the columns, as the run learned from "
            f"{', '.join(run.recipe.text)}"
        )
    name = None if id_column is None else column_named("--id", id_column, table)
    logger.info("%s, %s", run.result.task, run.weights)
    at_a_time = tokens_at_a_time or run.tokens_at_a_time
    predict_table(run, Job(table, columns, name, out, skip_empty, at_a_time))
    logger.info("%s: %s", "vectors" if embed else "predictions", out)
