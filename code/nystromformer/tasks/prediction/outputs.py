"""Files of predictions, written piece by piece, that appear under their name once they are whole."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.tasks.documents.targets import as_text
from nystromformer.tasks.prediction.loaded import Predictions, Vectors

_DIGITS = 6
"""Of a probability, in files whose cells are text."""


class Output(Protocol):
    """Takes rows, in order."""

    def write(self, ids: Sequence[str], told: Predictions | Vectors, empty: Sequence[bool]) -> None:
        """Some rows: their names, what is told of them, and which of them had no text, and so nothing."""

    def close(self) -> None:
        """Write what is left to write."""


Opener = Callable[[NewFile, tuple[str, ...], str], Output]


def output_kind(path: Path) -> Opener:
    """What writes a file whose name ends as this one's.

    Raises:
        UserError: no format has such an ending.
    """
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise UserError(
            f"--out {path}: expected a file that ends in {', '.join(_OPENERS)}, found {path.suffix or 'no ending'}"
        )
    return opener


def _cells(told: Predictions | Vectors, empty: Sequence[bool], width: int, separator: str) -> list[list[str]]:
    """What is told of each row as text; nothing where a row was empty."""
    rows = []
    for number, is_empty in enumerate(empty):
        if is_empty:
            rows.append([""] * width)
        elif isinstance(told, Vectors):
            rows.append([f"{value:.7g}" for value in told.vectors[number].tolist()])
        else:
            chances = [] if told.probabilities is None else told.probabilities[number].tolist()
            rows.append([as_text(told.labels[number], separator), *(f"{chance:.{_DIGITS}f}" for chance in chances)])
    return rows


class _Delimited:
    """CSV, or TSV."""

    def __init__(self, file: NewFile, header: tuple[str, ...], separator: str, delimiter: str) -> None:
        self._file = file
        self._width = len(header)
        self._separator = separator
        self._text = io.StringIO()
        self._writer = csv.writer(self._text, delimiter=delimiter, lineterminator="\n")
        self._writer.writerow(["id", *header])

    def write(self, ids: Sequence[str], told: Predictions | Vectors, empty: Sequence[bool]) -> None:
        cells = _cells(told, empty, self._width, self._separator)
        self._writer.writerows([name, *row] for name, row in zip(ids, cells, strict=True))
        self.close()

    def close(self) -> None:
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


class _JsonLines:
    def __init__(self, file: NewFile, header: tuple[str, ...], separator: str) -> None:
        self._file = file

    def write(self, ids: Sequence[str], told: Predictions | Vectors, empty: Sequence[bool]) -> None:
        lines = []
        for number, name in enumerate(ids):
            record = {key: None if empty[number] else value for key, value in self._record(told, number).items()}
            lines.append(json.dumps({"id": name, **record}, ensure_ascii=False) + "\n")
        self._file.write("".join(lines).encode())

    def _record(self, told: Predictions | Vectors, number: int) -> dict[str, Any]:
        if isinstance(told, Vectors):
            return {"vector": [float(f"{value:.7g}") for value in told.vectors[number].tolist()]}
        record = {"prediction": told.labels[number]}
        if told.probabilities is not None:
            chances = [round(chance, _DIGITS) for chance in told.probabilities[number].tolist()]
            record["probabilities"] = dict(zip(told.names, chances, strict=True))
        return record

    def close(self) -> None:
        """Nothing is kept back."""


class _Sink(io.RawIOBase):
    """A new file to the library that writes Parquet."""

    def __init__(self, file: NewFile) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        content = bytes(data)
        # The library writes its end even after an error, once its writer is collected.
        if not self._file.is_closed:
            self._file.write(content)
        return len(content)


class _Parquet:
    """A column for the prediction (text, a list of texts, or a number) and one for each probability (float32); or one
    for the vector (a list of float32).
    """

    def __init__(self, file: NewFile, header: tuple[str, ...], separator: str) -> None:
        self._arrow = importlib.import_module("pyarrow")
        self._header = header
        self._sink = _Sink(file)
        self._writer: Any = None

    def write(self, ids: Sequence[str], told: Predictions | Vectors, empty: Sequence[bool]) -> None:
        arrow = self._arrow
        told_columns = self._vectors(told, empty) if isinstance(told, Vectors) else self._predictions(told, empty)
        table = arrow.table({"id": arrow.array(ids, arrow.string()), **told_columns})
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(arrow.PythonFile(self._sink, mode="w"), table.schema)
        self._writer.write_table(table)

    def _predictions(self, told: Predictions, empty: Sequence[bool]) -> dict[str, Any]:
        arrow, (first, *others) = self._arrow, self._header
        labels = [None if is_empty else label for label, is_empty in zip(told.labels, empty, strict=True)]
        columns = {first: arrow.array(labels, self._type(told))}
        if told.probabilities is not None:
            mask = np.asarray(empty, dtype=bool)
            for name, chances in zip(others, told.probabilities.T, strict=True):
                columns[name] = arrow.array(np.ascontiguousarray(chances), arrow.float32(), mask=mask)
        return columns

    def _vectors(self, told: Vectors, empty: Sequence[bool]) -> dict[str, Any]:
        arrow = self._arrow
        rows = [None if is_empty else vector for vector, is_empty in zip(told.vectors, empty, strict=True)]
        return {"vector": arrow.array(rows, arrow.list_(arrow.float32()))}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _type(self, predictions: Predictions) -> Any:
        # By what the run learned, and not by these rows, of which there may be none.
        if predictions.probabilities is None:
            return self._arrow.float64()
        return self._arrow.list_(self._arrow.string()) if predictions.has_lists else self._arrow.string()


def _csv(file: NewFile, header: tuple[str, ...], separator: str) -> Output:
    return _Delimited(file, header, separator, ",")


def _tsv(file: NewFile, header: tuple[str, ...], separator: str) -> Output:
    return _Delimited(file, header, separator, "\t")


_OPENERS: dict[str, Opener] = {".csv": _csv, ".tsv": _tsv, ".jsonl": _JsonLines, ".parquet": _Parquet}
