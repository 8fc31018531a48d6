"""Files of predictions, written piece by piece."""

from __future__ import annotations

import csv
import importlib
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.tasks.documents.recipe import Recipe
from nystromformer.tasks.documents.targets import as_text

_DIGITS = 6
"""Of a probability, in files whose cells are text."""


class Output(ABC):
    """Writes the predictions of a run with this recipe, row by row, to a new file."""

    def __init__(self, file: NewFile, recipe: Recipe) -> None:
        self.file = file
        self.recipe = recipe

    @abstractmethod
    def write(self, ids: Sequence[str], columns: Mapping[str, Any], empty: Sequence[bool]) -> None:
        """Some rows, or none: their names, their results as a Predictor gives them, and which have none."""

    def close(self) -> None:  # noqa: B027  # most write all at once
        """Write what is left to write."""


def output_kind(path: Path) -> type[Output]:
    """What writes a file whose name ends as this one's.

    Raises:
        UserError: no format has such an ending.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise UserError(
            f"--out {path}: expected a file that ends in {', '.join(KINDS)}, found {path.suffix or 'no ending'}"
        )
    return kind


class _Csv(Output):
    delimiter = ","
    _has_header = False

    def write(self, ids: Sequence[str], columns: Mapping[str, Any], empty: Sequence[bool]) -> None:
        cells: dict[str, Sequence[str]] = {"id": ids}
        for name, values in columns.items():
            if name == "vector":
                for number, column in enumerate(values.T.tolist()):
                    cells[f"v_{number}"] = [f"{value:.7g}" for value in column]
            elif name == "prediction":
                cells[name] = ["" if each is None else as_text(each, self.recipe.separator) for each in values.tolist()]
            elif name == "cut":
                cells[name] = ["true" if value else "false" for value in values]
            else:
                cells[name] = [f"{value:.{_DIGITS}f}" for value in values.tolist()]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self.delimiter, lineterminator="\n")
        if not self._has_header:
            writer.writerow(cells)
            self._has_header = True
        for (key, *row), is_empty in zip(zip(*cells.values(), strict=True), empty, strict=True):
            writer.writerow([key, *([""] * len(row) if is_empty else row)])
        self.file.write(text.getvalue().encode())


class _Tsv(_Csv):
    delimiter = "\t"


class _JsonLines(Output):
    def write(self, ids: Sequence[str], columns: Mapping[str, Any], empty: Sequence[bool]) -> None:
        cells = {name: values.tolist() for name, values in columns.items()}
        for number, (key, is_empty) in enumerate(zip(ids, empty, strict=True)):
            record: dict[str, Any] = {}
            for name, values in cells.items():
                value = values[number]
                if name == "vector":
                    record[name] = [float(f"{each:.7g}") for each in value]
                elif name.startswith("p_"):
                    record.setdefault("probabilities", {})[name[2:]] = round(value, _DIGITS)
                else:
                    record[name] = round(value, _DIGITS) if name == "unknown_share" else value
            if is_empty:
                record = dict.fromkeys(record)
            self.file.write((json.dumps({"id": key, **record}, ensure_ascii=False) + "\n").encode())


class _Parquet(Output):
    """A column for the prediction (text, a list of texts, or a number) and one for each probability (float32); or one
    for the vector (a list of float32).
    """

    _writer: Any = None

    def write(self, ids: Sequence[str], columns: Mapping[str, Any], empty: Sequence[bool]) -> None:
        arrow, mask = importlib.import_module("pyarrow"), np.asarray(empty, dtype=bool)
        cells = {"id": arrow.array(ids, arrow.string())}
        for name, values in columns.items():
            if name == "vector":
                rows = [None if is_empty else row for row, is_empty in zip(values, empty, strict=True)]
                cells[name] = arrow.array(rows, arrow.list_(arrow.float32()))
            elif values.dtype == object:
                # By what the run learned, and not by these rows, of which there may be none.
                several = self.recipe.answer.kind == "several"
                cells[name] = arrow.array(values.tolist(), arrow.list_(arrow.string()) if several else arrow.string())
            else:
                cells[name] = arrow.array(values, mask=mask)
        table = arrow.table(cells)
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(arrow.PythonFile(self.file, mode="w"), table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


KINDS: dict[str, type[Output]] = {".csv": _Csv, ".tsv": _Tsv, ".jsonl": _JsonLines, ".parquet": _Parquet}
"""By the ending of a file's name."""
