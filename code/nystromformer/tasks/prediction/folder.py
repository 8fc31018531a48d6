"""A folder of Parquet files predicted into a folder with a file for each, resumed by what parts are there.

The order of the parts' computation, and who computes them, changes no byte. Each finished part has a record with its
checksum in the folder of finished parts; at the end they become one manifest, and that folder is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.writing import sha256_of, write_json
from nystromformer.runs.store import MARK, PARTS, Store, write_folder
from nystromformer.tasks.documents.table import column_named, columns_named
from nystromformer.tasks.prediction.inputs import Footer, ParquetFolder
from nystromformer.tasks.prediction.parts import FinishedPart, PartsJob, finished_part, predict_part
from nystromformer.tasks.prediction.predictor import Predictor
from nystromformer.tasks.prediction.progress import PredictionProgress
from nystromformer.tasks.prediction.stream import COMMAND
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

MANIFEST = "_manifest.json"
"""What reads a folder of Parquet files passes over names that begin so."""
FORMAT = 1
"""Of the manifest."""
_AT_ONCE = 16
"""Footers that are read."""

Engine = Callable[[PartsJob, Sequence[int]], Iterator[FinishedPart]]
"""Has parts predicted, and gives them as they are finished, in any order."""


@contextmanager
def local_engine() -> Iterator[Engine]:
    """This process."""
    yield lambda job, numbers: (predict_part(job, number) for number in numbers)


@dataclass(frozen=True)
class _Input:
    """What the parts are, by their footers alone."""

    rows: tuple[int, ...]
    """Of each part."""
    digest: str
    """Of all names, sizes and footers, which hold where every column of the file is and its bounds."""


def predict_folder(
    predictor: Predictor,
    source: ParquetFolder,
    out: Path,
    text: str | None,
    id_column: str | None,
    skip_empty: bool,
    tokens_at_a_time: int | None,
    engine: AbstractContextManager[Engine],
    part: slice | None = None,
) -> None:
    """Predict the Parquet files of a folder.

    Args:
        text, id_column: as of run_predict.
        part: of the files, beside other processes that have other parts; the folder is finished by a process that has
            all of them. None: all.

    Raises:
        UserError: the run cannot predict, a file or a text is invalid, files have other columns than the first one, the
            output folder is another's, or the engine fails; finished parts stay.
    """
    if out.parts and out.parts[0].endswith(":"):  # as pathlib has s3://BUCKET
        raise UserError(f"--out {out}: expected a folder on this machine, such as one to be copied to the store")
    out = out.absolute()
    if (out / MANIFEST).is_file() and not (out / PARTS / MARK).is_file():
        raise UserError(f"--out {out}: is there already and finished: name a new folder, or an empty one")
    # Another process may have made the folder of finished parts and nothing in it yet.
    is_free = not out.exists() or (out.is_dir() and {path.name for path in out.iterdir()} <= {PARTS})
    if not (is_free or (out / PARTS / MARK).is_file()):
        raise UserError(f"--out {out}: is there already: name a new folder, or an empty one")
    run = predictor.finished
    first = source.table(source.names[0])
    columns = run.recipe.text if text is None else columns_named("--text", text, first)
    check_columns(run.recipe.text, columns, text, first)
    name = None if id_column is None else column_named("--id", id_column, first)
    given = _read_input(source, (*columns, *filter(None, (name,))))
    weights = sha256_of(run.weights)
    facts = {
        "input": given.digest,
        "run": run.task,
        "weights (--predict)": weights,
        "classes": list(run.recipe.answer.names),
        **run.decisive,
        "tokens_at_a_time": tokens_at_a_time,
        "text": list(columns),
        "id": name,
    }

    def compute_parts(store: Store, numbers: Sequence[int]) -> list[FinishedPart]:
        job = PartsJob(
            *(predictor, source, out, columns, name, skip_empty, tokens_at_a_time, store.pieces, store.whole),
            weights_sha256=weights,
        )
        with engine as compute:
            parts = _compute(job, given, compute, numbers)
        if sha256_of(run.weights) != weights:
            raise UserError(
                f"{run.weights}: changed while it was being used: remove {out} to start again, or name another --out"
            )
        return parts

    def write(store: Store) -> list[str]:
        parts = compute_parts(store, range(len(source.names)))
        described = {"format": FORMAT, "command": COMMAND, **facts, "columns": ["id", *predictor.columns]}
        rows = sum(part.rows for part in parts)
        write_json(store.whole / MANIFEST, described | {"rows": rows, "parts": [vars(part) for part in parts]})
        return [MANIFEST]

    logger.info("%s, %s", run.task, run.weights)
    if part is None:
        write_folder(out, COMMAND, facts, [out / MANIFEST], write)
        logger.info("predictions: %s in %s", number_of(len(source.names), "part"), out)
        return
    with Store(out / PARTS, COMMAND, facts, "choose another --out", shared=True) as store:
        if (out / MANIFEST).is_file():  # since the check before; its parts are removed
            if not store.has_pieces:
                store.remove()
            raise UserError(f"--out {out}: was finished by another process meanwhile")
        found = compute_parts(store, range(len(source.names))[part])
    logger.info(
        "predictions: %s of %d in %s; without --array_index and --array_size the command finishes the folder",
        *(number_of(len(found), "part"), len(source.names), out),
    )


def _compute(job: PartsJob, given: _Input, compute: Engine, numbers: Sequence[int]) -> list[FinishedPart]:
    """Parts in their order."""
    names = job.source.names
    finished = {number: part for number in numbers if (part := finished_part(job, number)) is not None}
    missing = [number for number in numbers if number not in finished]
    total, done = sum(given.rows[number] for number in numbers), sum(part.rows for part in finished.values())
    if finished:
        logger.info("continuing after %s of %s", f"{len(finished):,}", number_of(len(numbers), "part"))
    number_by_name = {names[number]: number for number in numbers}
    if missing:
        progress = PredictionProgress(total, done)
        for part in compute(job, missing):
            finished[number_by_name[part.name]] = part
            progress.advance(part.rows, part.tokens)
        progress.close()
    for number in numbers:
        if finished[number].rows != given.rows[number]:
            raise UserError(
                f"{job.source.where(names[number])}: expected {given.rows[number]:,} rows as at the start, found "
                f"{finished[number].rows:,}: it changed meanwhile: remove {job.out} to start again"
            )
    return [finished[number] for number in numbers]


def check_columns(learned: Sequence[str], columns: Sequence[str], text: str | None, table: Any) -> None:
    """Check the text columns of a table to predict.

    Args:
        learned: those of the data that the run learned from.
        text: the flag; None: it was not given.

    Raises:
        UserError: the table has them not, or not as many as the run learned from were named.
    """
    if missing := [name for name in columns if name not in table.columns]:
        raise UserError(
            f"{table.name}: expected the columns of its texts ({', '.join(columns)}), found "
            f"no {first_names(missing)}; it has {first_names(table.columns)}: name others with --text"
        )
    if len(columns) != len(learned):
        raise UserError(
            f"--text {text}: expected {len(learned)} of the columns, as the run learned from {', '.join(learned)}"
        )


def _footers(source: ParquetFolder) -> Iterator[Footer]:
    """Of all files, several at once: of an object store each takes a few round trips."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for start in range(0, len(source.names), _AT_ONCE):
            yield from pool.map(source.footer, source.names[start : start + _AT_ONCE])


def _read_input(source: ParquetFolder, columns: Sequence[str]) -> _Input:
    """What the parts are.

    Raises:
        UserError: one is no Parquet file, or has other columns than the first one.
    """
    expected: list[str] = []
    rows: list[int] = []
    digest = hashlib.sha256()
    for name, footer in zip(source.names, _footers(source), strict=True):
        schema = footer.schema
        found = [f"{column}: {schema.field(column).type}" for column in columns if column in schema.names]
        if (expected := expected or found) != found:
            raise UserError(
                f"{source.where(name)}: expected the columns of {source.names[0]} ({', '.join(expected)}), found "
                f"{', '.join(found) or 'none of them'}: write the files with one schema, or put them into folders of "
                "their own"
            )
        rows.append(footer.rows)
        digest.update(json.dumps([name, footer.file_bytes]).encode() + footer.content)
    return _Input(tuple(rows), digest.hexdigest())
