"""A finished run as one object that other programs hand around: to a service, to Ray, to Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.tasks.prediction.loaded import Finished, Predictions, check_texts, load_finished
from nystromformer.wording import first_names

Column = Sequence[Any] | NDArray[Any]


class Predictor:
    """Predicts texts with a finished run of run_classify.py, run_glue.py or run_imdb.py, or embeds them: with such
    a run's encoder, or an experiment's.

    The run is opened at the first call, once in a process, and pickling leaves the opened run out. On a CPU in float32
    a text's result does not depend on the texts beside it: any division of rows into calls gives the same bits, with
    the same libraries, processor type and number of threads. Under autocast and on a GPU batches have fixed shapes as
    well, but the libraries there do not promise the same bits.

    Shapes: n texts, E the encoder's width.

    Args:
        folder: of the run, with its result.json; with `embed` also of an experiment, with its config.json.
        device: auto, cpu, cuda or cuda:N.
        embed: give each text's vector, which the encoder gives the head, instead of a prediction.
        baseline: predict with the regression on words that run_classify.py keeps beside its runs.
        text: text columns of tables, one, or two for pairs; None: as in the run's training data; of an
            experiment `text`.
        id: the column of tables that is passed through where they have it.
        skip_empty: give texts that are empty or missing None and NaN, instead of raising.

    Raises:
        ValueError: both embed and baseline, or more than two text columns.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "auto",
        embed: bool = False,
        baseline: bool = False,
        *,
        text: Sequence[str] | None = None,
        id: str = "id",
        skip_empty: bool = False,
    ) -> None:
        if baseline and embed:
            raise ValueError("baseline=True: expected no embed=True with it: it has no encoder")
        names = (text,) if isinstance(text, str) else None if text is None else tuple(text)
        if names is not None and not 1 <= len(names) <= 2:
            raise ValueError(f"text: expected one column or two, found {len(names)}")
        # Another process may have another working folder.
        self.folder = Path(folder).absolute()
        self.text = names
        self.id = id
        self.skip_empty = skip_empty
        self._choice = (device, embed, baseline)
        self._finished: Finished[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_finished": None}

    @property
    def finished(self) -> Finished[Any]:
        """The run, opened.

        Raises:
            UserError: as `load_run`.
        """
        if self._finished is None:
            self._finished = _open(self.folder, *self._choice)
        return self._finished

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a result, without the id."""
        _, embed, _ = self._choice
        return ("vector",) if embed else self.finished.header

    def __call__(self, texts: Sequence[str] | Mapping[str, Column]) -> dict[str, Any]:
        """Columns of results, in the texts' order.

        Args:
            texts: n texts, or a table as columns of n cells or as a DataFrame; other columns than those of text and id
                are not read.

        Returns:
            The id, where a table has it; `prediction` (n,): names of classes, lists of names for several labels, or
            values; of classes and labels `p_NAME` (n,) float32 for each name. With `embed`, `vector` (n, E) float32.

        Raises:
            UserError: a table without the columns, or texts where the run learned from pairs, or the other way round.
            TypeError, ValueError: what is no text, or an empty one.
        """
        found: dict[str, Any] = {}
        if not isinstance(texts, Mapping) and hasattr(texts, "columns"):  # of pandas or polars
            texts = {name: texts[name] for name in texts.columns}
        if isinstance(texts, Mapping):
            columns = self._texts_of(texts)
            if self.id in texts:
                found[self.id] = texts[self.id]
        else:
            check_texts(texts[:0])  # not one text
            columns = [list(texts)]
        count = len(columns[0])
        if wrong := [len(column) for column in (*columns, *found.values()) if len(column) != count]:
            raise ValueError(f"expected columns of one length, found {count} and {wrong[0]} cells")
        empty = np.zeros(count, dtype=bool)
        for column in columns if self.skip_empty else ():
            empty |= np.asarray([is_empty(text) for text in column], dtype=bool)
        for column in columns:
            check_texts(column, empty)
        full = np.flatnonzero(~empty)
        first, *others = ([column[number] for number in full.tolist()] for column in columns)
        run = self.finished
        scores = np.full((count, run.outputs), np.nan, dtype=np.float32)
        scores[full] = run.checked_scores(first, *others, independent=True).numpy()
        return found | self._columns_of(run.told(torch.from_numpy(scores), independent=True), empty)

    def _texts_of(self, table: Mapping[str, Column]) -> list[list[Any]]:
        names = self.text or self.finished.recipe.text
        if missing := [name for name in names if name not in table]:
            raise UserError(
                f"expected the text columns {', '.join(names)}, found no {first_names(missing)}; the table has "
                f"{first_names(list(table))}: name others with text"
            )
        return [list(table[name]) for name in names]

    def _columns_of(self, told: Any, empty: NDArray[np.bool_]) -> dict[str, Any]:
        if not isinstance(told, Predictions):
            return {"vector": told.vectors}
        if told.probabilities is None:
            return {"prediction": np.asarray(told.labels, dtype=np.float64)}
        # Filled one by one: numpy would make lists of equal lengths a matrix.
        labels = np.empty(len(told), dtype=object)
        for number, label in enumerate(told.labels):
            labels[number] = None if empty[number] else label
        chances = {f"p_{name}": chance.copy() for name, chance in zip(told.names, told.probabilities.T, strict=True)}
        return {"prediction": labels, **chances}


def is_empty(text: Any) -> bool:
    """Whether a cell holds no text: nothing, NaN, pandas' NA or white space."""
    if isinstance(text, str):
        return not text.strip()
    is_nan = isinstance(text, float) and text != text
    return is_nan or text is None or text is getattr(sys.modules.get("pandas"), "NA", None)


@lru_cache(maxsize=1)
def _open(folder: Path, device: str, embed: bool, baseline: bool) -> Finished[Any]:
    """Kept for the next Predictor of the same run: Spark and Ray unpickle one for each of a process's tasks."""
    return load_finished(folder, device, embed, baseline)
