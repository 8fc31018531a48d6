"""A table of any size predicted in bounded memory, from where an earlier start was stopped to the same bytes.

The rows come in windows, whose bounds follow from the table alone; the scores of each are a part beside the output
until that is written. So it does not matter in how many starts a table was predicted.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.parts import WHOLE, Part, Parts, open_parts
from nystromformer.files.writing import NewFile, check_new_file
from nystromformer.prediction.outputs import output_kind
from nystromformer.prediction.predictor import UNREAD, Predictor, Scored, tell
from nystromformer.tabular.cells import empty_texts, id_of, text_of
from nystromformer.tabular.table import Table, column_named, columns_named
from nystromformer.training.prefetch import prefetched
from nystromformer.wording import first_names

logger = logging.getLogger(__name__)

WINDOW_ROWS = 2048
WINDOW_CHARACTERS = 1 << 23
"""A window ends at so many rows or characters, whichever comes first: so much is in memory, and batches are made of
rows of similar length within it."""
WINDOWS_HELD = 8
"""Windows that stay in memory while a table is checked. Only a table of more is read again to be predicted: an invalid
row is said before the work, and more rows may not fit in memory."""
COMMAND = "run_predict.py"


@dataclass(frozen=True)
class Window:
    """Some rows, one after another, each of one text or two."""

    texts: list[tuple[str, ...]]
    ids: list[str]

    @cached_property
    def empty(self) -> list[bool]:
        return [not all(text.strip() for text in each) for each in self.texts]


@dataclass(frozen=True)
class Job:
    """What predicts tables, and by which of their columns; pickles.

    Args:
        text: columns of texts, one or two.
        id: the column that names rows; None: their numbers, from 1.
    """

    predictor: Predictor
    text: tuple[str, ...]
    id: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the predictions beside the table."""
        return {**self.predictor.network.facts, "text": self.text, "id": self.id}

    @property
    def columns(self) -> list[str]:
        """All that are read."""
        return [*self.text, *filter(None, [self.id])]

    def windows(self, table: Table) -> Iterator[Window]:
        """The rows of a table; an empty window where it has none.

        Raises:
            UserError: a row or a text is invalid.
        """
        window, characters, number = Window([], []), 0, 0
        for number, cells in enumerate(table.rows(self.columns), start=1):
            # An id may follow the texts.
            texts = tuple(text_of(table, number, *each) for each in zip(self.text, cells, strict=False))
            window.texts.append(texts)
            window.ids.append(str(number) if self.id is None else id_of(table, number, self.id, cells[-1]))
            characters += sum(map(len, texts))
            if len(window.texts) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
                yield window
                window, characters = Window([], []), 0
        if window.texts or not number:
            yield window

    def score(self, windows: Iterable[tuple[str, Window]]) -> Iterator[tuple[str, Window, Scored]]:
        """Named windows with their scores; the next one is read and tokenised while one is computed."""
        own = self.predictor
        encoded = ((name, window, own.encode(window.texts, window.empty)) for name, window in windows)
        for name, window, examples in prefetched(encoded, depth=1):
            yield name, window, own.scores(examples, window.empty)


def job_of(predictor: Predictor, table: Table, text: str | None, id_column: str | None) -> Job:
    """The job on tables such as this one.

    Args:
        text: its columns of texts, as they were typed; None: those of the data that the run learned from.
        id_column: the column that names its rows.

    Raises:
        UserError: the table has them not, or not as many as the run learned from were named.
    """
    learned = predictor.network.recipe.text
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
    return Job(predictor, columns, None if id_column is None else column_named("--id", id_column, table))


def predict_table(predictor: Predictor, table: Table, out: Path, text: str | None, id_column: str | None) -> None:
    """Predict a table's rows, in order, into a file that appears once it is whole.

    Args:
        text, id_column: as of job_of.

    Raises:
        UserError: the table or a text is invalid; texts are empty; the file is there; or parts of another prediction,
            or files of anybody else, are where the parts go.
    """
    write_as = output_kind(out)
    folder = out.with_name(f"{out.name}.parts")
    if not folder.exists():
        check_new_file("--out", out)
    job = job_of(predictor, table, text, id_column)
    rows, digest, windows = _checked(job, table)
    with open_parts(folder, COMMAND, {"table": digest, **job.facts}, advice="name another file with --out") as parts:
        # The record of an output that an earlier start has finished; without it, a file there is somebody else's.
        if parts.find(WHOLE, verify=True) is None:
            check_new_file("--out", out)
            made = _score(job, windows, rows, parts)
            counts = tell(part.figures for part in made.values())
            absent = {column for column, kind in zip(UNREAD, ("cut", "unknown"), strict=True) if not counts[kind]}
            with NewFile(folder / out.name) as file:
                output = write_as(file, predictor.network.recipe)
                for name in sorted(made):
                    ids, empty, found = _unpacked(parts.read(name) or b"")
                    results = predictor.results(found, empty)
                    output.write(ids, {column: results[column] for column in results if column not in absent}, empty)
                output.close()
            parts.finish(WHOLE, file, out)
        parts.remove()
    logger.info("%s: %s", "vectors" if predictor.embed else "predictions", out)


def _score(job: Job, windows: Iterable[Window], rows: int, parts: Parts) -> dict[str, Part]:
    """A part for each window of a table of so many rows, by its name; those that are finished are kept."""
    made: dict[str, Part] = {}
    with progress_bar(rows) as bar:

        def missing() -> Iterator[tuple[str, Window]]:
            for number, window in enumerate(windows):
                name = f"{number:08d}"
                if (part := parts.find(name, verify=True)) is None:
                    yield name, window
                else:
                    made[name] = part
                    bar.update(len(window.ids))

        for name, window, found in job.score(missing()):
            ids, content = np.frombuffer(json.dumps(window.ids).encode(), dtype=np.uint8), io.BytesIO()
            np.savez(content, ids=ids, empty=window.empty, **vars(found))
            with NewFile(parts.folder / name) as file:
                file.write(content.getvalue())
            made[name] = parts.add(name, {file.path: file.stamp}, found.counts)
            bar.update(len(window.ids))
    return made


def _unpacked(content: bytes) -> tuple[list[str], list[bool], Scored]:
    """Ids, which rows are empty, and scores of a window, as `_score` kept them."""
    arrays = dict(np.load(io.BytesIO(content), allow_pickle=False))
    return json.loads(arrays.pop("ids").tobytes()), arrays.pop("empty").tolist(), Scored(**arrays)


def progress_bar(rows: int) -> Any:
    """Of a prediction; in a log a line a minute."""
    return tqdm(total=rows, desc="predicting", unit="row", mininterval=0.1 if sys.stderr.isatty() else 60)


def _checked(job: Job, table: Table) -> tuple[int, str, Iterable[Window]]:
    """How many rows a table has, a digest of them, and the rows.

    Raises:
        UserError: a row or a text is invalid, or some are empty.
    """
    digest = hashlib.sha256()
    held: list[Window] = []
    empty: list[int] = []
    rows = count = 0
    for count, window in enumerate(job.windows(table), start=1):
        empty += [rows + number for number, is_empty in enumerate(window.empty, start=1) if is_empty]
        rows += len(window.ids)
        for texts, name in zip(window.texts, window.ids, strict=True):
            for text in (*texts, name):
                content = text.encode()
                digest.update(b"%d;" % len(content))
                digest.update(content)
        if count <= WINDOWS_HELD:
            held.append(window)
    if not rows:
        raise UserError(f"{table.name}: expected rows to predict, found none")
    if empty and not job.predictor.skip_empty:
        raise UserError(empty_texts(table, len(empty), rows, empty[0]))
    rest = islice(job.windows(table), len(held), None) if count > len(held) else ()
    return rows, digest.hexdigest(), chain(held, rest)
