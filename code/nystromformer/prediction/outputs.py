"""Files of predictions, written piece by piece."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.tasks.documents.recipe import Recipe, as_text

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
ENDINGS = (*_DELIMITERS, ".parquet")


def check_ending(path: Path) -> None:
    """Check that a file's name ends as one of an output."""
    if path.suffix.lower() not in ENDINGS:
        raise UserError(
            f"--out {path}: expected a file that ends in {', '.join(ENDINGS)}, found {path.suffix or 'no ending'}"
        )


class Output:
    """Writes the predictions of a run with this recipe, row by row, to a new file: as text, or to Parquet, where a
    column has the prediction (text, a list of texts, or a number), one each probability (float32), or one the vector (a
    list of float32).
    """

    def __init__(self, file: NewFile, recipe: Recipe) -> None:
        self._file, self._recipe = file, recipe
        self._delimiter = _DELIMITERS.get(file.path.suffix.lower())
        self._writer: Any = None

    def write(self, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
        """Some rows, or none: their names, and their results as a Predictor gives them."""
        if self._delimiter is None:
            self._write_parquet(ids, columns)
            return
        cells: dict[str, Sequence[str]] = {"id": ids}
        for name, values in columns.items():
            if name == "vector":
                for number, column in enumerate(values.T.tolist()):
                    cells[f"v_{number}"] = [f"{value:.7g}" for value in column]
            elif name == "prediction":
                cells[name] = [as_text(each, self._recipe.separator) for each in values.tolist()]
            elif name == "cut":
                cells[name] = ["true" if value else "false" for value in values]
            else:
                cells[name] = [f"{value:.6f}" for value in values.tolist()]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=self._delimiter, lineterminator="\n")
        if self._writer is None:
            self._writer = writer
            writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
        self._file.write(text.getvalue().encode())

    def _write_parquet(self, ids: Sequence[str], columns: Mapping[str, Any]) -> None:
        arrow = importlib.import_module("pyarrow")
        cells = {"id": arrow.array(ids, arrow.string())}
        for name, values in columns.items():
            if name == "vector":
                cells[name] = arrow.array(list(values), arrow.list_(arrow.float32()))
            elif values.dtype == object:
                # By what the run learned, and not by these rows, of which there may be none.
                several = self._recipe.answer.kind == "several"
                cells[name] = arrow.array(values.tolist(), arrow.list_(arrow.string()) if several else arrow.string())
            else:
                cells[name] = arrow.array(values)
        table = arrow.table(cells)
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            self._writer = parquet.ParquetWriter(arrow.PythonFile(self._file, mode="w"), table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._delimiter is None and self._writer is not None:
            self._writer.close()
