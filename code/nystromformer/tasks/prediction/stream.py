"""A table of any size predicted in bounded memory, from where an earlier start was killed to the same bytes.

The rows come in windows, whose bounds follow from the table alone; the scores of each are a file beside the output
until all are there. So it does not matter in how many starts a table was predicted.

Shapes: n rows of a window, C outputs.
"""

from __future__ import annotations

import hashlib
import io
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files import NewFile, check_new_file, sha256_of
from nystromformer.kept import read_kept, write_kept
from nystromformer.tasks.documents.source import empty_texts, text_of
from nystromformer.tasks.documents.table import Cell, Table
from nystromformer.tasks.finetuning.examples import Examples
from nystromformer.tasks.prediction.loaded import LoadedRun
from nystromformer.tasks.prediction.outputs import output_kind
from nystromformer.tasks.prediction.progress import PredictionProgress
from nystromformer.training.folder import RunLock
from nystromformer.training.prefetch import Prefetched

logger = logging.getLogger(__name__)

WINDOW_ROWS = 2048
WINDOW_CHARACTERS = 1 << 23
"""A window ends at so many rows or characters, whichever comes first: so much is in memory, and batches are made of
rows of similar length within it."""
_STATE = "state.json"


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
        """The folder of what is done, until all is."""
        return self.out.with_name(f"{self.out.name}.parts")


@dataclass(frozen=True)
class Window:
    """Some rows, one after another."""

    texts: list[tuple[str, ...]]
    ids: list[str]

    @property
    def empty(self) -> list[bool]:
        return [not all(text.strip() for text in each) for each in self.texts]


@dataclass(frozen=True)
class _Encoded:
    """A window's rows that have text, tokenised."""

    examples: Examples | None
    full: NDArray[np.int64]
    """Their numbers in the window."""
    rows: int


def predict_table(run: LoadedRun, job: Job) -> None:
    """Predict a table's rows, in order, into a file that appears once it is whole.

    Raises:
        UserError: the table or a text is none, texts are empty, the file is there, or another prediction is half done.
    """
    opener = output_kind(job.out)
    if not job.parts.is_dir():
        check_new_file("--out", job.out)
    count, digest = _checked(job)
    facts = {"table": digest, "rows": count, **_facts(run, job)}
    _check_state(job, facts)
    if job.out.exists() and not _are_computed(job):
        # Once all scores are there, the file is this prediction's, and was cut short before they were removed.
        check_new_file("--out", job.out)
    with RunLock(job.parts):
        write_kept(job.parts / _STATE, facts)
        _compute(run, job, count)
        with NewFile(job.out) as file:
            output = opener(file, run.known.answer.names, run.known.separator)
            for number, window in enumerate(windows(job)):
                scores = _read_part(job, number, len(window.texts))
                if scores is None:
                    raise UserError(f"{_part(job, number)}: is gone or damaged: start the same command again")
                output.write(window.ids, run.told(torch.from_numpy(scores)), window.empty)
            output.close()
        shutil.rmtree(job.parts)


def windows(job: Job) -> Iterator[Window]:
    """The table's rows."""
    columns = (*job.text, *filter(None, (job.id,)))
    window, characters = Window([], []), 0
    for number, cells in enumerate(job.table.rows(columns), start=1):
        texts = tuple(
            text_of(job.table, number, name, cell) for name, cell in zip(job.text, cells[: len(job.text)], strict=True)
        )
        window.texts.append(texts)
        window.ids.append(str(number) if job.id is None else _name(job, number, cells[-1]))
        characters += sum(map(len, texts))
        if len(window.texts) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = Window([], []), 0
    if window.texts:
        yield window


def _name(job: Job, number: int, cell: Cell) -> str:
    assert job.id is not None
    return text_of(job.table, number, job.id, cell if isinstance(cell, str | None) else str(cell))


def _checked(job: Job) -> tuple[int, str]:
    """The number of rows, and a hash of all of them.

    Raises:
        UserError: a row or a text is none, or some are empty.
    """
    digest, count, empty, first = hashlib.sha256(), 0, 0, 0
    for window in windows(job):
        for texts, name, is_empty in zip(window.texts, window.ids, window.empty, strict=True):
            count += 1
            for text in (*texts, name):
                content = text.encode()
                digest.update(b"%d;" % len(content))
                digest.update(content)
            first = count if is_empty and not empty else first
            empty += is_empty
    if not count:
        raise UserError(f"{job.table.name}: expected rows to predict, found none")
    if empty and not job.skip_empty:
        raise UserError(empty_texts(job.table, empty, count, first))
    return count, digest.hexdigest()


def _facts(run: LoadedRun, job: Job) -> dict[str, Any]:
    """What else decides the scores."""
    return {
        "run": run.result.task,
        "weights": sha256_of(run.weights),
        "precision": run.device.precision,
        "device": run.device.device.type,
        "tokens_at_a_time": job.tokens_at_a_time,
        "text": list(job.text),
    }


def _check_state(job: Job, facts: Mapping[str, Any]) -> None:
    """Check that what is half done is this prediction.

    Raises:
        UserError: it is another one.
    """
    advice = "remove the folder to begin anew, or name another file by --out"
    try:
        state = read_kept(job.parts / _STATE)
    except ValueError as error:
        raise UserError(f"{job.parts / _STATE}: damaged ({error}): {advice}") from None
    if state is None:
        return
    other = [name for name in facts if not isinstance(state, dict) or state.get(name) != facts[name]]
    if other:
        raise UserError(f"{job.parts}: a prediction of another {' and '.join(other)} is half done there: {advice}")


def _compute(run: LoadedRun, job: Job, count: int) -> None:
    """The scores of all windows that have none."""
    done = rows = 0
    for window in windows(job):
        if _read_part(job, done, len(window.texts)) is None:
            break
        done, rows = done + 1, rows + len(window.texts)
    if rows == count:
        return
    if rows:
        logger.info("going on after %s of %s rows", f"{rows:,}", f"{count:,}")
    progress = PredictionProgress(count, rows)
    # The next window is read and tokenised while one is computed.
    for number, each in enumerate(
        Prefetched(map(_encoder(run), islice(windows(job), done, None)), ahead=1), start=done
    ):
        scores = np.full((each.rows, run.known.answer.outputs), np.nan, dtype=np.float32)
        tokens = 0
        if each.examples is not None:
            scores[each.full] = run.scores(each.examples, job.tokens_at_a_time).numpy()
            tokens = int(each.examples.tokens.sum())
        content = io.BytesIO()
        np.save(content, scores)
        with NewFile(_part(job, number)) as file:
            file.write(content.getvalue())
        progress.advance(each.rows, tokens)
    progress.close()


def _encoder(run: LoadedRun) -> Any:
    def encode(window: Window) -> _Encoded:
        full = np.flatnonzero(~np.asarray(window.empty))
        if not len(full):
            return _Encoded(None, full, len(window.texts))
        texts = [window.texts[number] for number in full.tolist()]
        second = [each[1] for each in texts] if run.known.is_of_pairs else None
        return _Encoded(run.encode([each[0] for each in texts], second), full, len(window.texts))

    return encode


def _are_computed(job: Job) -> bool:
    if not (job.parts / _STATE).is_file():
        return False
    return all(_read_part(job, number, len(window.texts)) is not None for number, window in enumerate(windows(job)))


def _part(job: Job, number: int) -> Path:
    return job.parts / f"{number:08d}.npy"


def _read_part(job: Job, number: int, rows: int) -> NDArray[np.float32] | None:
    """A window's scores; None where they are not there whole."""
    path = _part(job, number)
    try:
        scores: NDArray[np.float32] = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (ValueError, EOFError):
        logger.warning("%s: damaged; it is computed again", path)
        return None
    return scores if scores.ndim == 2 and len(scores) == rows else None
