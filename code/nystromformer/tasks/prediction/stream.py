"""A table of any size predicted in bounded memory, from where an earlier start was killed to the same bytes.

The rows come in windows, whose bounds follow from the table alone; the scores of each are a file beside the output
until all are there. So it does not matter in how many starts a table was predicted. Whenever the table is read again,
each window has to be what it was.

Shapes: n rows of a window, C outputs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile, check_new_file, sha256_of
from nystromformer.runs.store import MARK, Pieces, Store
from nystromformer.tasks.documents.source import empty_texts, id_of, text_of
from nystromformer.tasks.documents.table import Table
from nystromformer.tasks.prediction.loaded import Finished
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.progress import PredictionProgress
from nystromformer.training.prefetch import Prefetched

logger = logging.getLogger(__name__)

WINDOW_ROWS = 2048
WINDOW_CHARACTERS = 1 << 23
"""A window ends at so many rows or characters, whichever comes first: so much is in memory, and batches are made of
rows of similar length within it."""
COMMAND = "run_predict.py"
AnyFinished = Finished[Any, Any]


@dataclass(frozen=True)
class Job:
    """A table to predict.

    Args:
        table: of the texts.
        text: their columns, one or two.
        id: the column that names rows; None: their numbers, from 1.
        out: the file to write.
        skip_empty: give rows without text no prediction, instead of stopping.
        tokens_at_a_time: padding included.
    """

    table: Table
    text: tuple[str, ...]
    id: str | None
    out: Path
    skip_empty: bool
    tokens_at_a_time: int

    @property
    def parts(self) -> Path:
        """Folder of the finished parts; removed when the output is complete."""
        return self.out.with_name(f"{self.out.name}.parts")


@dataclass(frozen=True)
class Window:
    """Some rows, one after another."""

    texts: list[tuple[str, ...]]
    ids: list[str]

    @property
    def empty(self) -> list[bool]:
        return [not all(text.strip() for text in each) for each in self.texts]

    @cached_property
    def digest(self) -> bytes:
        """Of all texts and names."""
        digest = hashlib.sha256()
        for texts, name in zip(self.texts, self.ids, strict=True):
            for text in (*texts, name):
                content = text.encode()
                digest.update(b"%d;" % len(content))
                digest.update(content)
        return digest.digest()


@dataclass(frozen=True)
class EncodedWindow:
    """A window, and its rows that have text, tokenised."""

    window: Window
    examples: Any
    """None where none has."""
    full: NDArray[np.int64]
    """Their numbers in the window."""

    @property
    def tokens(self) -> int:
        return 0 if self.examples is None else int(self.examples.tokens.sum())


@dataclass(frozen=True)
class _Checked:
    """What a table was when all of it was checked."""

    windows: list[tuple[int, bytes]]
    """Rows and digest of each."""

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.windows)

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(digest for _, digest in self.windows)).hexdigest()

    def again(self, job: Job) -> Iterator[Window]:
        """The table's rows once more.

        Raises:
            UserError: they are not what they were.
        """
        count = 0
        for count, window in enumerate(windows(job), start=1):
            if count > len(self.windows) or window.digest != self.windows[count - 1][1]:
                raise _changed(job)
            yield window
        if count < len(self.windows):
            raise _changed(job)


def _changed(job: Job) -> UserError:
    return UserError(
        f"{job.table.name}: changed while it was being read, so that {job.out} was not written. Restore the table and "
        f"start the same command again; to predict the table as it is now, remove the folder {job.parts} first"
    )


def predict_table(run: AnyFinished, job: Job) -> None:
    """Predict a table's rows, in order, into a file that appears once it is whole.

    Raises:
        UserError: the table or a text is invalid, or changed while it was read; texts are empty; the file is there; or
            parts of another prediction, or files of anybody else, are where the parts go.
    """
    opener = output_kind(job.out)
    if not (job.parts / MARK).is_file():
        check_new_file("--out", job.out)
    table = _checked(job)
    weights = sha256_of(run.weights)
    facts = {"table": table.digest, "rows": table.rows, "weights (--predict)": weights, **_facts(run, job)}
    with Store(job.parts, COMMAND, facts, "name another file with --out", job.table.name) as store:
        if not store.publish_again(job.out.parent):
            check_new_file("--out", job.out)
            _compute(run, job, table, store.pieces)
            with NewFile(store.whole / job.out.name) as file:
                output = opener(file, run.header, run.recipe.separator)
                for number, window in enumerate(table.again(job)):
                    scores = _read_part(run, store.pieces, number)
                    if scores is None:
                        raise UserError(f"{job.parts}: part {number} is gone or damaged: start the same command again")
                    output.write(window.ids, run.told(torch.from_numpy(scores)), window.empty)
                output.close()
            if sha256_of(run.weights) != weights:
                raise UserError(
                    f"{run.weights}: changed while it was being used, so that {job.out} was not written: remove "
                    f"{job.parts} to start again"
                )
            store.publish(job.out.parent, [job.out.name])
        store.remove()


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


def _checked(job: Job) -> _Checked:
    """What the table is.

    Raises:
        UserError: a row or a text is invalid, or some are empty.
    """
    found, count, empty, first = [], 0, 0, 0
    for window in windows(job):
        found.append((len(window.texts), window.digest))
        for is_empty in window.empty:
            count += 1
            first = count if is_empty and not empty else first
            empty += is_empty
    if not count:
        raise UserError(f"{job.table.name}: expected rows to predict, found none")
    if empty and not job.skip_empty:
        raise UserError(empty_texts(job.table, empty, count, first))
    return _Checked(found)


def _facts(run: AnyFinished, job: Job) -> dict[str, Any]:
    """What else decides the scores."""
    return {
        "run": run.task,
        "classes": list(run.recipe.answer.names),
        **run.decisive,
        "tokens_at_a_time": job.tokens_at_a_time,
        "text": list(job.text),
        "id": job.id,
    }


def _compute(run: AnyFinished, job: Job, table: _Checked, pieces: Pieces) -> None:
    """The scores of all windows that have none."""
    missing = [number for number in range(len(table.windows)) if _read_part(run, pieces, number) is None]
    left = sum(table.windows[number][0] for number in missing)
    if not missing:
        return
    if left < table.rows:
        logger.info("continuing after %s of %s rows", f"{table.rows - left:,}", f"{table.rows:,}")
    progress = PredictionProgress(table.rows, table.rows - left)
    wanted = set(missing)
    to_do = (window for number, window in enumerate(table.again(job)) if number in wanted)
    for number, each in zip(missing, encoded(run, to_do), strict=True):
        scores = np.full((len(each.window.texts), run.outputs), np.nan, dtype=np.float32)
        if each.examples is not None:
            scores[each.full] = run.scores(each.examples, job.tokens_at_a_time).numpy()
        with pieces.write(_part(number)) as piece:
            piece.write(scores.astype("<f4").tobytes())
        progress.advance(len(scores), each.tokens)
    progress.close()


def encoded(run: AnyFinished, to_do: Iterable[Window]) -> Iterable[EncodedWindow]:
    """Each window tokenised; the next one is read and tokenised while one is computed."""

    def encode(window: Window) -> EncodedWindow:
        full = np.flatnonzero(~np.asarray(window.empty))
        if not len(full):
            return EncodedWindow(window, None, full)
        texts = [window.texts[number] for number in full.tolist()]
        second = [each[1] for each in texts] if run.recipe.is_of_pairs else None
        return EncodedWindow(window, run.encode([each[0] for each in texts], second), full)

    return Prefetched(map(encode, to_do), depth=1)


def _part(number: int) -> str:
    return f"{number:08d}"


def _read_part(run: AnyFinished, pieces: Pieces, number: int) -> NDArray[np.float32] | None:
    """A window's scores; None where they are not there whole."""
    content = pieces.read(_part(number))
    if content is None:
        return None
    return np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(-1, run.outputs)
