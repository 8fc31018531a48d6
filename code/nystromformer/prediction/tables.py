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
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from nystromformer.errors import UserError
from nystromformer.files.parts import WHOLE, Part, Parts, open_parts
from nystromformer.files.writing import NewFile, check_new_file
from nystromformer.prediction.outputs import Output, check_ending
from nystromformer.prediction.predictor import UNREAD, Predictor, Scored, tell
from nystromformer.tabular.cells import text_of
from nystromformer.tabular.table import Table, columns_named
from nystromformer.training.trainable import prefetched
from nystromformer.wording import first_names

logger = logging.getLogger(__name__)

WINDOW_ROWS = 2048
WINDOW_CHARACTERS = 1 << 23
"""A window ends at so many rows or characters, whichever comes first: so much is in memory, and batches are made of
rows of similar length within it."""
COMMAND = "run_predict.py"


@dataclass(frozen=True)
class Window:
    """Some rows, one after another, each of one text or two."""

    texts: list[tuple[str, ...]]
    ids: list[str]


@dataclass(frozen=True)
class Job:
    """What predicts tables, and by which of their columns; pickles."""

    predictor: Predictor
    text: tuple[str, ...]
    """Columns of texts, one or two."""
    id: str | None
    """The column that names rows; None: their numbers, from 1."""

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the predictions beside the table."""
        return {**self.predictor.network.facts, "text": self.text, "id": self.id}

    @property
    def columns(self) -> list[str]:
        """All that are read."""
        return [*self.text, *filter(None, [self.id])]

    def windows(self, table: Table) -> Iterator[Window]:
        """The rows of a table; an empty window where it has none."""
        window, characters, number = Window([], []), 0, 0
        for number, cells in enumerate(table.rows(self.columns), start=1):
            # An id may follow the texts.
            texts = tuple(text_of(table, number, *each) for each in zip(self.text, cells, strict=False))
            if not all(text.strip() for text in texts):
                raise UserError(f"{table.place(number)}: the text is empty: fill it in, or remove such rows")
            window.texts.append(texts)
            name = str(number) if self.id is None else text_of(table, number, self.id, cells[-1], as_text=True)
            window.ids.append(name)
            characters += sum(map(len, texts))
            if len(window.texts) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
                yield window
                window, characters = Window([], []), 0
        if window.texts or not number:
            yield window

    def score(self, windows: Iterable[tuple[str, Window]]) -> Iterator[tuple[str, Window, Scored]]:
        """Named windows with their scores; the next one is read and tokenised while one is computed."""
        own, places = self.predictor.network, range(len(self.text))
        encoded = (
            (name, window, own.encode(*([texts[place] for texts in window.texts] for place in places)))
            for name, window in windows
        )
        for name, window, examples in prefetched(encoded, depth=1):
            yield name, window, own.scores(examples)


def job_of(predictor: Predictor, table: Table, text: str | None, id_column: str | None) -> Job:
    """The job on tables such as this one, by its columns of texts as they were typed (None: those that the run learned
    from) and the column that names its rows.
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
    return Job(predictor, columns, None if id_column is None else columns_named("--id", id_column, table, most=1)[0])


def predict_table(predictor: Predictor, table: Table, out: Path, text: str | None, id_column: str | None) -> None:
    """Predict a table's rows, in order, into a file that appears once it is whole."""
    check_ending(out)
    folder = out.with_name(f"{out.name}.parts")
    if not folder.exists():
        check_new_file("--out", out)
    job = job_of(predictor, table, text, id_column)
    # All rows are read once before: an invalid one is said before the work.
    rows, digest = 0, hashlib.sha256()
    for window in job.windows(table):
        rows += len(window.ids)
        digest.update(json.dumps([window.texts, window.ids]).encode())
    if not rows:
        raise UserError(f"{table.name}: expected rows to predict, found none")
    facts = {"table": digest.hexdigest(), **job.facts}
    with open_parts(folder, COMMAND, facts, advice="name another file with --out") as parts:
        # The record of an output that an earlier start has finished; without it, a file there is somebody else's.
        if parts.find(WHOLE, verify=True) is None:
            check_new_file("--out", out)
            made = _score(job, table, rows, parts)
            counts = tell(part.figures for part in made.values())
            absent = {column for column, kind in zip(UNREAD, ("cut", "unknown"), strict=True) if not counts[kind]}
            with NewFile(folder / out.name) as file:
                output = Output(file, predictor.network.recipe)
                for name in sorted(made):
                    arrays = dict(np.load(io.BytesIO(parts.read(name) or b""), allow_pickle=False))
                    ids = json.loads(arrays.pop("ids").tobytes())
                    results = predictor.results(Scored(**arrays))
                    output.write(ids, {column: results[column] for column in results if column not in absent})
                output.close()
            parts.finish(WHOLE, file, out)
        parts.remove()
    logger.info("%s: %s", "vectors" if predictor.embed else "predictions", out)


def _score(job: Job, table: Table, rows: int, parts: Parts) -> dict[str, Part]:
    """A part for each window of a table of so many rows, by its name; those that are finished are kept."""
    made: dict[str, Part] = {}
    with progress_bar(rows) as bar:

        def missing() -> Iterator[tuple[str, Window]]:
            for number, window in enumerate(job.windows(table)):
                name = f"{number:08d}"
                if (part := parts.find(name, verify=True)) is None:
                    yield name, window
                else:
                    made[name] = part
                    bar.update(len(window.ids))

        for name, window, found in job.score(missing()):
            ids, content = np.frombuffer(json.dumps(window.ids).encode(), dtype=np.uint8), io.BytesIO()
            np.savez(content, ids=ids, **vars(found))
            with NewFile(parts.folder / name) as file:
                file.write(content.getvalue())
            made[name] = parts.add(name, {file.path: file.stamp}, found.counts)
            bar.update(len(window.ids))
    return made


def progress_bar(rows: int) -> Any:
    """Of a prediction; in a log a line a minute."""
    return tqdm(total=rows, desc="predicting", unit="row", mininterval=0.1 if sys.stderr.isatty() else 60)
