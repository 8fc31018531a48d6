"""One Parquet file of a folder predicted into one of the same name, by whichever process gets it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, place_new, sha256_of, sync_folder, temporary_name, writing
from nystromformer.runs.store import Pieces
from nystromformer.tasks.prediction.inputs import ParquetFolder
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.predictor import Predictor
from nystromformer.tasks.prediction.stream import Job, Window, encoded, windows

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedPart:
    """A part as the manifest has it."""

    name: str
    rows: int
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PartsJob:
    """A folder to predict; pickles, so that other processes take parts of it.

    Args:
        predictor: of the run.
        source: of the input; a part for each of its files.
        out: folder of the output.
        text, id, skip_empty, tokens_at_a_time: as of Job.
        pieces: the finished parts' records.
        fresh: a folder for files that get their names when they are whole.
        weights_sha256: of the file of the predictor's weights.
    """

    predictor: Predictor
    source: ParquetFolder
    out: Path
    text: tuple[str, ...]
    id: str | None
    skip_empty: bool
    tokens_at_a_time: int | None
    pieces: Pieces
    fresh: Path
    weights_sha256: str


def predict_part(job: PartsJob, number: int) -> FinishedPart:
    """Predict a part, unless it is finished. The record is there before the file has its name.

    Raises:
        UserError: the file or a text is invalid, texts are empty, or something else has the output's name.
    """
    with job.pieces.alone(number):
        return _found(job, number) or _predicted(job, number)


def _predicted(job: PartsJob, number: int) -> FinishedPart:
    check_weights(job.predictor.finished.weights, job.weights_sha256)
    name = job.source.names[number]
    target, fresh = job.out / name, job.fresh / temporary_name(name)
    with NewFile(fresh) as file:
        rows, tokens = _write(job, name, file)
    part = FinishedPart(name, rows, tokens, file.stamp.size, file.stamp.sha256)
    with job.pieces.write(_record(number)) as piece:
        piece.write(json.dumps(vars(part)).encode())
    try:
        with writing(target):
            place_new(fresh, target)
    except UserError:
        # Else the next start would take what has the name for a damaged part of its own.
        (job.pieces.folder / _record(number)).unlink(missing_ok=True)
        raise
    with writing(target):
        sync_folder(job.out)
    return part


@lru_cache(maxsize=1)
def check_weights(weights: Path, sha256: str) -> None:
    """Check, once in a process, that it predicts with the weights that the others predict with.

    Raises:
        UserError: there are others now, as where an experiment goes on training.
    """
    if sha256_of(weights) != sha256:
        raise UserError(
            f"{weights}: other weights than at the start of this prediction: the run or the experiment was trained "
            "meanwhile. Copy its folder and predict with the copy into another --out"
        )


def finished_part(job: PartsJob, number: int) -> FinishedPart | None:
    """A part that is there whole; None of one that is not, or that another process works at. What is damaged is
    removed, and the log says so.

    Raises:
        UserError: a file that this command did not write has the part's name.
    """
    with job.pieces.alone(number, wait=False) as is_alone:
        return _found(job, number) if is_alone else None


def _found(job: PartsJob, number: int) -> FinishedPart | None:
    target, record = job.out / job.source.names[number], job.pieces.folder / _record(number)
    is_own = os.path.lexists(record)
    content = job.pieces.read(record.name)
    is_there = os.path.lexists(target)
    if is_there and (not is_own or target.is_symlink() or not target.is_file()):
        raise UserError(f"{target}: is there already, and this command did not write it: move it away")
    part = None if content is None else FinishedPart(**json.loads(content))
    if part is not None and is_there and sha256_of(target) == part.sha256:
        return part
    if is_there:
        if part is not None:
            logger.warning("%s: damaged; it is computed again", target)
        target.unlink()
    record.unlink(missing_ok=True)
    return None


def _write(job: PartsJob, name: str, file: NewFile) -> tuple[int, int]:
    """Write a part's predictions; gives its rows and tokens.

    Raises:
        UserError: as `predict_part`.
    """
    run = job.predictor.finished
    output = output_kind(job.out / name)(file, run.header, run.recipe.separator)
    table = Job(job.source.table(name), job.text, job.id, job.out / name, job.skip_empty, 0)
    rows = tokens = 0
    for each in encoded(run, _checked(table)):
        scores = np.full((len(each.window.texts), run.outputs), np.nan, dtype=np.float32)
        if each.examples is not None:
            scores[each.full] = run.scores(each.examples, job.tokens_at_a_time, independent=True).numpy()
        output.write(each.window.ids, run.told(torch.from_numpy(scores), independent=True), each.window.empty)
        rows, tokens = rows + len(scores), tokens + each.tokens
    if not rows:  # it has columns all the same
        output.write([], run.told(torch.zeros(0, run.outputs)), [])
    output.close()
    return rows, tokens


def _checked(job: Job) -> Iterator[Window]:
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


def _record(number: int) -> str:
    return f"{number:08d}"
