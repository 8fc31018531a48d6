"""A table of any size predicted in bounded memory, from where an earlier start was stopped to the same bytes.

The rows come in windows, whose bounds follow from the table alone; the scores of each are a part beside the output
until that is written. So it does not matter in how many starts a table was predicted.

Shapes: n rows of a window, C outputs.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, check_new_file, sha256_of
from nystromformer.runs.store import MARK, Pieces, Store
from nystromformer.tasks.documents.source import empty_texts, id_of, text_of
from nystromformer.tasks.documents.table import Table
from nystromformer.tasks.prediction.loaded import Finished, Predictions, Vectors
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.training.prefetch import Prefetched

logger = logging.getLogger(__name__)

WINDOW_ROWS = 2048
WINDOW_CHARACTERS = 1 << 23
"""A window ends at so many rows or characters, whichever comes first: so much is in memory, and batches are made of
rows of similar length within it."""
COMMAND = "run_predict.py"


@dataclass(frozen=True)
class Job:
    """A table to predict.

    Args:
        table: of the texts.
        text: their columns, one or two.
        id: the column that names rows; None: their numbers, from 1.
        skip_empty: give rows without text no prediction, instead of stopping.
    """

    table: Table
    text: tuple[str, ...]
    id: str | None
    skip_empty: bool


@dataclass(frozen=True)
class Window:
    """Some rows, one after another."""

    texts: list[tuple[str, ...]]
    ids: list[str]

    @property
    def empty(self) -> list[bool]:
        return [not all(text.strip() for text in each) for each in self.texts]


def predict_table(run: Finished[Any], job: Job, out: Path) -> None:
    """Predict a table's rows, in order, into a file that appears once it is whole.

    Raises:
        UserError: the table or a text is invalid; texts are empty; the file is there; or parts of another prediction,
            or files of anybody else, are where the parts go.
    """
    opener = output_kind(out)
    parts = out.with_name(f"{out.name}.parts")
    if not (parts / MARK).is_file():
        check_new_file("--out", out)
    rows, digest = _checked(job)
    facts = {"table": digest, **facts_of(run, job.text, job.id)}
    with Store(parts, COMMAND, facts, "name another file with --out", job.table.name) as store:
        if not store.publish_again(out.parent):
            check_new_file("--out", out)
            with NewFile(store.whole / out.name) as file, progress_bar(rows) as bar:
                output = opener(file, run.header, run.recipe.separator)
                for window, told in predicted(run, windows(job), store.pieces):
                    output.write(window.ids, told, window.empty)
                    bar.update(len(told))
                output.close()
            store.publish(out.parent, [out.name])
        store.remove()


def facts_of(run: Finished[Any], text: tuple[str, ...], id: str | None) -> dict[str, Any]:
    """What decides the predictions beside the table."""
    facts = {"run": run.task, "weights": sha256_of(run.weights), "classes": list(run.recipe.answer.names)}
    return {**facts, **run.decisive, "text": list(text), "id": id}


def progress_bar(rows: int) -> Any:
    """Of a prediction; in a log a line a minute."""
    return tqdm(total=rows, desc="predicting", unit="row", mininterval=0.1 if sys.stderr.isatty() else 60)


def windows(job: Job) -> Iterator[Window]:
    """The table's rows."""
    columns = (*job.text, *filter(None, (job.id,)))
    window, characters = Window([], []), 0
    for number, cells in enumerate(job.table.rows(columns), start=1):
        texts = tuple(
            text_of(job.table, number, name, cell) for name, cell in zip(job.text, cells[: len(job.text)], strict=True)
        )
        window.texts.append(texts)
        window.ids.append(str(number) if job.id is None else id_of(job.table, number, job.id, cells[-1]))
        characters += sum(map(len, texts))
        if len(window.texts) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = Window([], []), 0
    if window.texts:
        yield window


def _checked(job: Job) -> tuple[int, str]:
    """How many rows the table has, and a digest of them.

    Raises:
        UserError: a row or a text is invalid, or some are empty.
    """
    digest = hashlib.sha256()
    is_empty: list[bool] = []
    for window in windows(job):
        is_empty += window.empty
        for texts, name in zip(window.texts, window.ids, strict=True):
            for text in (*texts, name):
                content = text.encode()
                digest.update(b"%d;" % len(content))
                digest.update(content)
    if not is_empty:
        raise UserError(f"{job.table.name}: expected rows to predict, found none")
    if any(is_empty) and not job.skip_empty:
        raise UserError(empty_texts(job.table, sum(is_empty), len(is_empty), is_empty.index(True) + 1))
    return len(is_empty), digest.hexdigest()


def predicted(
    run: Finished[Any], given: Iterable[Window], pieces: Pieces | None = None, independent: bool = False
) -> Iterator[tuple[Window, Predictions | Vectors]]:
    """Each window with what is told of its rows; the next one is read and tokenised while one is computed.

    Args:
        pieces: where the scores of each window are kept, or are from an earlier start; None: nowhere.
        independent: as in `Finished.scores`.
    """

    def prepare(numbered: tuple[int, Window]) -> tuple[Window, Any]:
        """A window, and its scores, or its rows that have text, tokenised; None where none has."""
        number, window = numbered
        content = None if pieces is None else pieces.read(f"{number:08d}")
        if content is not None:
            return window, np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(-1, run.outputs)
        texts = [texts for texts, is_empty in zip(window.texts, window.empty, strict=True) if not is_empty]
        second = [each[1] for each in texts] if run.recipe.is_of_pairs else None
        return window, run.encode([each[0] for each in texts], second) if texts else None

    for number, (window, found) in enumerate(Prefetched(map(prepare, enumerate(given)), depth=1)):
        scores: NDArray[np.float32] = found
        if not isinstance(found, np.ndarray):
            scores = np.full((len(window.texts), run.outputs), np.nan, dtype=np.float32)
            if found is not None:
                scores[~np.asarray(window.empty)] = run.scores(found, independent=independent).numpy()
            if pieces is not None:
                with pieces.write(f"{number:08d}") as piece:
                    piece.write(scores.astype("<f4").tobytes())
        yield window, run.told(torch.from_numpy(scores), independent=independent)
