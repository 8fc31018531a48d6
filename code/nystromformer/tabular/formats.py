"""Tables of other formats: Parquet, Excel, JSON, and folders with a folder of text files for each class."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError, first_line
from nystromformer.tabular.cells import Cell, is_missing
from nystromformer.tabular.reading import Reading
from nystromformer.tabular.table import Row, Table
from nystromformer.wording import first_names

_FIRST_OBJECTS = 1000
"""Whose keys are the columns of JSON Lines."""
_PARQUET_ROWS, _PARQUET_BYTES = 256, 1 << 20
"""Rows, which are whole documents, and bytes of a column that are read at a time: row groups may be as large as the
file.
"""
_UNLABELLED = ("unsup", "unsupervised", "unlabeled", "unlabelled")
"""Folders of texts that have no label, as IMDB's."""
_SETS = ("Sequence", "List", "LargeList")


def open_folder(path: Path, reading: Reading) -> Table:
    """Text files in a folder for each class, as IMDB's are: columns text, label and file."""
    files = sorted(path.glob("*/*.txt"))
    if not files:
        raise UserError(f"{path}: expected a folder for each class with .txt files in it, found none")

    def read(columns: Sequence[str]) -> Iterator[Row]:
        for file in files:
            with reading.open(file) as content:
                text = content.read()
            label = None if file.parent.name.lower() in _UNLABELLED else file.parent.name
            cells = {"text": text, "label": label, "file": f"{file.parent.name}/{file.name}"}
            yield tuple(cells[column] for column in columns)

    return Table(str(path), ("text", "label", "file"), read, reading=reading)


def open_excel(path: Path, reading: Reading, sheet: str | None) -> Table:
    """A sheet of an Excel file, which is read into memory; rows without a cell are none."""
    pandas = importlib.import_module("pandas")
    try:
        with pandas.ExcelFile(path, engine="openpyxl") as book:
            names = book.sheet_names
            if (sheet is None and len(names) > 1) or (sheet is not None and sheet not in names):
                raise UserError(f"{path}: expected one of its sheets, {path}:SHEET: {first_names(names)}")
            frame = pandas.read_excel(book, sheet or names[0], header=None, dtype=object, na_filter=False)
    except UserError:
        raise
    except Exception as error:  # openpyxl raises zipfile's, xml's and its own; without it pandas says what to install
        raise UserError(f"{path}: cannot be read as an Excel file: {first_line(error)}") from None
    found = (tuple(None if cell == "" else cell for cell in row) for row in frame.itertuples(index=False, name=None))
    first, *rows = [row for row in found if not all(map(is_missing, row))] or [()]
    header = ["" if cell is None else str(cell).strip() for cell in first]
    if not any(header):
        raise UserError(f"{path}: expected a header and rows, found an empty sheet")

    def read(columns: Sequence[str]) -> Iterator[Row]:
        places = [header.index(column) for column in columns]
        return (tuple(row[place] for place in places) for row in rows)

    return Table(str(path), tuple(filter(None, header)), read, reading=reading)


def open_json(path: Path, reading: Reading) -> Table:
    """An array of objects, which is read into memory, or an object in each line; what one of them has not is empty."""
    with reading.open(path, newline="\n") as file:
        is_array = file.read(1024).lstrip().startswith("[")

    def values() -> Iterator[Cell]:
        with reading.open(path, newline="\n") as file:
            number, line = 1, ""
            try:
                if is_array:
                    yield from json.load(file)
                for number, line in enumerate(filter(str.strip, file), start=1):  # noqa: B007  # for the message
                    yield json.loads(line)
            except UnicodeError:
                raise
            except ValueError as error:
                file.seek(0)
                if number == 1 and not is_array:
                    _refuse_single(path, file.read())
                what = "an array of objects" if is_array else f"an object of JSON, found {line!r:.40}"
                raise UserError(f"{path}, row {number:,}: expected {what} ({error}); ends early?") from None

    def read(columns: Sequence[str]) -> Iterator[Row | UserError]:
        for number, value in enumerate(values(), start=1):
            if isinstance(value, dict):
                yield tuple(map(value.get, columns))
            else:
                yield UserError(f"{path}, row {number:,}: expected an object of JSON, found {value!r:.40}")

    first = [value for value in islice(values(), _FIRST_OBJECTS) if isinstance(value, dict)]
    if len(first) == 1:
        _refuse_single(path, json.dumps(first[0]))
    columns = tuple(dict.fromkeys(str(key) for value in first for key in value))
    if not columns:
        raise UserError(f"{path}: expected objects of JSON, in each line or in an array, found none")
    return Table(str(path), columns, read, reading=reading)


def _refuse_single(path: Path, content: str) -> None:
    """Say of a single object which of its keys holds the rows; nothing of a row, nor of what is no object."""
    try:
        value = json.loads(content)
    except ValueError:
        return
    held = value if isinstance(value, dict) else {}
    lists = [key for key, each in held.items() if isinstance(each, list) and each and isinstance(each[0], dict | list)]
    if lists or (held and all(isinstance(each, list | dict) for each in held.values())):
        raise UserError(
            f"{path}: expected a list of rows, each an object, found one object, of which "
            f"{first_names(lists or list(held))} holds what may be meant: write "
            "the list of rows alone (of columns, pandas' to_json(orient='records'))"
        )


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """A Parquet file, opened by pyarrow.

    Raises:
        UserError: it is no Parquet file, or is damaged, which may only be known while it is read.
    """
    # imported here: it takes a second
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path, buffer_size=_PARQUET_BYTES) as file:
            yield file
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: expected a Parquet file, found a damaged one or one that ends early: {first_line(error)}"
        ) from None


def open_parquet(path: Path, reading: Reading) -> Table:
    """A Parquet file. Classes that its metadata name, as the datasets library writes them, have their names."""
    with parquet_file(path) as file:
        schema = file.schema_arrow
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    classes = _class_names(described.get("info", {}).get("features") or {})

    def read(columns: Sequence[str]) -> Iterator[Row]:
        with parquet_file(path) as file:
            for batch in file.iter_batches(_PARQUET_ROWS, columns=list(dict.fromkeys(columns))):
                cells = {column: list(map(_plain, found)) for column, found in batch.to_pydict().items()}
                for column in classes.keys() & cells.keys():
                    cells[column] = [_named(cell, classes[column], f"{path}, {column}") for cell in cells[column]]
                yield from zip(*(cells[column] for column in columns), strict=True)

    def read_arrow() -> Any:
        with parquet_file(path) as file:
            return file.read()

    return Table(str(path), tuple(schema.names), read, read_arrow, reading)


def _plain(cell: Cell) -> Cell:
    """A decimal number as one of Python's own."""
    if not isinstance(cell, Decimal) or not cell.is_finite():
        return cell
    return int(cell) if cell == cell.to_integral_value() else float(cell)


def _class_names(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    """Of the columns of classes, or of lists of them, as the datasets library describes columns."""
    names: dict[str, Sequence[str]] = {}
    for column, feature in features.items():
        while isinstance(feature, list) or (isinstance(feature, dict) and feature.get("_type") in _SETS):
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            names[column] = feature["names"]
    return names


def _named(cell: Cell, names: Sequence[str], place: str) -> Cell:
    """A class by its name; a number below 0 stands for none."""
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, list):
        return [_named(each, names, place) for each in cell]
    if not cell < len(names):
        raise UserError(f"{place}: expected the number of one of the classes {first_names(names)}, found {cell}")
    return names[int(cell)] if cell >= 0 else None
