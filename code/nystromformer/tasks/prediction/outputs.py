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
from nystromformer.tasks.prediction.loaded import Predictions

_DIGITS = 6
"""Of a probability, in files whose cells are text."""


class Output(Protocol):
    """Takes rows, in order."""

    def write(self, ids: Sequence[str], predictions: Predictions, empty: Sequence[bool]) -> None:
        """Some rows: their names, what was predicted, and which of them had no text and so no prediction."""

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


def _cells(predictions: Predictions, empty: Sequence[bool], separator: str) -> list[list[str]]:
    """Prediction and probabilities of each row as text; nothing where a row was empty."""
    rows = []
    for number, label in enumerate(predictions.labels):
        if empty[number]:
            rows.append([""] * (1 + len(predictions.names)))
            continue
        chances = [] if predictions.probabilities is None else predictions.probabilities[number].tolist()
        rows.append([as_text(label, separator), *(f"{chance:.{_DIGITS}f}" for chance in chances)])
    return rows


class _Rows:
    """Takes rows that end in a carriage return and a line feed, and passes them on without the former."""

    def __init__(self, text: io.StringIO) -> None:
        self._text = text

    def write(self, row: str) -> None:
        self._text.write(row.removesuffix("\r\n") + "\n")


class _Delimited:
    """CSV, or TSV."""

    def __init__(self, file: NewFile, names: tuple[str, ...], separator: str, delimiter: str) -> None:
        self._file = file
        self._separator = separator
        self._text = io.StringIO()
        # Told of both, it quotes cells with either; rows end in a line feed all the same.
        self._writer = csv.writer(_Rows(self._text), delimiter=delimiter, lineterminator="\r\n")
        self._writer.writerow(["id", "prediction", *(f"p_{name}" for name in names)])

    def write(self, ids: Sequence[str], predictions: Predictions, empty: Sequence[bool]) -> None:
        cells = _cells(predictions, empty, self._separator)
        self._writer.writerows([name, *row] for name, row in zip(ids, cells, strict=True))
        self.close()

    def close(self) -> None:
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()


class _JsonLines:
    def __init__(self, file: NewFile, names: tuple[str, ...], separator: str) -> None:
        self._file = file

    def write(self, ids: Sequence[str], predictions: Predictions, empty: Sequence[bool]) -> None:
        lines = []
        for number, (name, label) in enumerate(zip(ids, predictions.labels, strict=True)):
            record: dict[str, Any] = {"id": name, "prediction": None if empty[number] else label}
            if predictions.probabilities is not None:
                chances = [round(chance, _DIGITS) for chance in predictions.probabilities[number].tolist()]
                record["probabilities"] = None if empty[number] else dict(zip(predictions.names, chances, strict=True))
            lines.append(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.write("".join(lines).encode())

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
        self._file.write(content)
        return len(content)


class _Parquet:
    """A column for the prediction (text, a list of texts, or a number) and one for each probability (float32)."""

    def __init__(self, file: NewFile, names: tuple[str, ...], separator: str) -> None:
        self._arrow = importlib.import_module("pyarrow")
        self._names = names
        self._sink = _Sink(file)
        self._writer: Any = None

    def write(self, ids: Sequence[str], predictions: Predictions, empty: Sequence[bool]) -> None:
        arrow = self._arrow
        labels = [None if is_empty else label for label, is_empty in zip(predictions.labels, empty, strict=True)]
        columns = {"id": arrow.array(ids, arrow.string()), "prediction": arrow.array(labels, self._type(predictions))}
        if predictions.probabilities is not None:
            mask = np.asarray(empty, dtype=bool)
            for name, chances in zip(self._names, predictions.probabilities.T, strict=True):
                columns[f"p_{name}"] = arrow.array(np.ascontiguousarray(chances), arrow.float32(), mask=mask)
        table = arrow.table(columns)
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(arrow.PythonFile(self._sink, mode="w"), table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _type(self, predictions: Predictions) -> Any:
        # By what the run learned, and not by these rows, which may all be empty.
        if predictions.probabilities is None:
            return self._arrow.float64()
        lists = any(isinstance(label, list) for label in predictions.labels)
        return self._arrow.list_(self._arrow.string()) if lists else self._arrow.string()


def _csv(file: NewFile, names: tuple[str, ...], separator: str) -> Output:
    return _Delimited(file, names, separator, ",")


def _tsv(file: NewFile, names: tuple[str, ...], separator: str) -> Output:
    return _Delimited(file, names, separator, "\t")


_OPENERS: dict[str, Opener] = {".csv": _csv, ".tsv": _tsv, ".jsonl": _JsonLines, ".parquet": _Parquet}
