"""A folder of Parquet files predicted into a folder with a file for each, resumed by what parts are there.

The order of the parts' computation, and who computes them, changes no byte. Each finished part has a record with its
checksum in the folder of finished parts; at the end they become one manifest, and that folder is removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, place_new, sha256_of, sync_folder, temporary_name, write_json, writing
from nystromformer.runs.store import MARK, PARTS, Pieces, Store, write_folder
from nystromformer.tasks.documents.table import Table, column_named, columns_named
from nystromformer.tasks.prediction.inputs import ParquetFolder
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.predictor import Predictor
from nystromformer.tasks.prediction.stream import COMMAND, Job, Window, facts_of, predicted, progress_bar, windows
from nystromformer.wording import first_names, number_of

logger = logging.getLogger(__name__)

MANIFEST = "_manifest.json"
"""What reads a folder of Parquet files passes over names that begin so."""
FORMAT = 2
"""Of the manifest."""


@dataclass(frozen=True)
class FinishedPart:
    """A part as the manifest has it."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PartsJob:
    """A folder to predict; pickles, so that other processes take parts of it.

    Args:
        predictor: of the run.
        source: of the input; a part for each of its files.
        out: folder of the output.
        text, id, skip_empty: as of Job.
        pieces: the finished parts' records.
        fresh: a folder for files that get their names when they are whole.
    """

    predictor: Predictor
    source: ParquetFolder
    out: Path
    text: tuple[str, ...]
    id: str | None
    skip_empty: bool
    pieces: Pieces
    fresh: Path


Engine = Callable[[PartsJob, Sequence[int]], Iterator[FinishedPart]]
"""Has parts predicted, and gives them as they are finished, in any order."""


@contextmanager
def local_engine() -> Iterator[Engine]:
    """This process."""
    yield lambda job, numbers: (predict_part(job, number) for number in numbers)


def predict_folder(
    predictor: Predictor,
    source: ParquetFolder,
    out: Path,
    text: str | None,
    id_column: str | None,
    skip_empty: bool,
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
    # Another process may have made the folder of finished parts and nothing in it yet.
    is_free = not out.exists() or {path.name for path in out.iterdir()} <= {PARTS}
    if not (is_free or (out / PARTS / MARK).is_file()):
        raise UserError(f"--out {out}: is there already: name a new folder, or an empty one")
    columns, name = named_columns(predictor.finished.recipe.text, source.table(source.names[0]), text, id_column)
    rows, digest = source.described((*columns, *filter(None, (name,))))
    facts = {"input": digest, **facts_of(predictor.finished, columns, name)}

    def compute_parts(store: Store, numbers: Sequence[int]) -> list[FinishedPart]:
        job = PartsJob(predictor, source, out, columns, name, skip_empty, store.pieces, store.whole)
        parts: dict[str, FinishedPart] = {}
        with engine as compute, progress_bar(sum(rows[number] for number in numbers)) as bar:
            for found in compute(job, numbers):
                parts[found.name] = found
                bar.update(found.rows)
        return [parts[source.names[number]] for number in numbers]

    def write(store: Store) -> list[str]:
        parts = compute_parts(store, range(len(source.names)))
        described = {"format": FORMAT, "command": COMMAND, **facts, "columns": ["id", *predictor.columns]}
        write_json(store.whole / MANIFEST, described | {"rows": sum(rows), "parts": [vars(part) for part in parts]})
        return [MANIFEST]

    if part is None:
        write_folder(out, COMMAND, facts, [out / MANIFEST], write)
        logger.info("predictions: %s in %s", number_of(len(source.names), "part"), out)
        return
    with Store(out / PARTS, COMMAND, facts, "choose another --out", shared=True) as store:
        found = compute_parts(store, range(len(source.names))[part])
    logger.info(
        "predictions: %s of %d in %s; without --array_index and --array_size the command finishes the folder",
        *(number_of(len(found), "part"), len(source.names), out),
    )


def named_columns(
    learned: Sequence[str], table: Table, text: str | None, id_column: str | None
) -> tuple[tuple[str, ...], str | None]:
    """The columns of a table's texts, and the one that names its rows.

    Args:
        learned: columns of the texts that the run learned from.
        text, id_column: as of run_predict.

    Raises:
        UserError: the table has them not, or not as many as the run learned from were named.
    """
    columns = tuple(learned) if text is None else columns_named("--text", text, table)
    if missing := [name for name in columns if name not in table.columns]:
        raise UserError(
            f"{table.name}: expected the columns of its texts ({', '.join(columns)}), found "
            f"no {first_names(missing)}; it has {first_names(table.columns)}: name others with --text"
        )
    if len(columns) != len(learned):
        raise UserError(
            f"--text {text}: expected {len(learned)} of the columns, as the run learned from {', '.join(learned)}"
        )
    return columns, None if id_column is None else column_named("--id", id_column, table)


def predict_part(job: PartsJob, number: int) -> FinishedPart:
    """Predict a part, unless it is finished; one that is damaged is computed again, and the log says so.

    Raises:
        UserError: the file or a text is invalid, texts are empty, or a file that this command did not write has the
            part's name.
    """
    record, name = f"{number:08d}", job.source.names[number]
    target, fresh = job.out / name, job.fresh / temporary_name(name)
    with job.pieces.alone(number):
        is_own = (job.pieces.folder / record).exists()
        content = job.pieces.read(record)
        if target.exists() and not is_own:
            raise UserError(f"{target}: is there already, and this command did not write it: move it away")
        if target.exists() and content is not None:
            part = FinishedPart(**json.loads(content))
            if sha256_of(target) == part.sha256:
                return part
            logger.warning("%s: damaged; it is computed again", target)
        target.unlink(missing_ok=True)
        (job.pieces.folder / record).unlink(missing_ok=True)
        with NewFile(fresh) as file:
            rows = _write(job, name, file)
        part = FinishedPart(name, rows, file.stamp.size, file.stamp.sha256)
        # The record is there before the file has its name: a file without one is somebody else's.
        with job.pieces.write(record) as piece:
            piece.write(json.dumps(vars(part)).encode())
        try:
            with writing(target):
                place_new(fresh, target)
                sync_folder(job.out)
        except UserError:
            # Else the next start would take what has the name for a damaged part of its own.
            (job.pieces.folder / record).unlink(missing_ok=True)
            raise
    return part


def _write(job: PartsJob, name: str, file: NewFile) -> int:
    """Write a part's predictions; gives its rows.

    Raises:
        UserError: as `predict_part`.
    """
    run = job.predictor.finished
    output = output_kind(job.out / name)(file, run.header, run.recipe.separator)
    table = Job(job.source.table(name), job.text, job.id, job.skip_empty)
    rows = 0
    for window, told in predicted(run, _without_empty(table), independent=True):
        output.write(window.ids, told, window.empty)
        rows += len(told)
    if not rows:  # it has columns all the same
        output.write([], run.told(torch.zeros(0, run.outputs)), [])
    output.close()
    return rows


def _without_empty(job: Job) -> Iterator[Window]:
    """The windows of a table.

    Raises:
        UserError: a row is invalid, or empty.
    """
    before = 0
    for window in windows(job):
        if not job.skip_empty and any(window.empty):
            row = before + window.empty.index(True) + 1
            raise UserError(f"{job.table.place(row)}: the text is empty: fill it in, or add --skip_empty")
        before += len(window.texts)
        yield window
