"""Tables of events, CSV or Parquet, read a piece at a time: a row an event (long), or a row a client (nested)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.tasks.transactions.batches import DAY, Batch, Roles, Values
from nystromformer.tasks.transactions.store import Form
from nystromformer.wording import first_names, listed

UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "days": float(DAY)}
"""Of times that are numbers, in seconds."""
_BLOCK_BYTES = 8 << 20
_PARQUET_ROWS = 1 << 16
FEW = 200
"""Integers with at most so many different values among the first ones are taken for categories."""
Kind = Literal["categorical", "numerical"]


@dataclass(frozen=True)
class Source:
    """Tables in one or several files of the same columns."""

    name: str
    """As messages call it."""
    columns: Mapping[str, Any]
    """Their types of pyarrow's, by name."""
    first: Any
    """The first record batch, to infer from."""
    read: Callable[[Sequence[str], Sequence[str]], Iterator[tuple[str, int, Any]]]
    """Record batches of the columns to read, of which some as text; and of each the file's name and the number of its
    first row."""


def open_source(place: Path, delimiter: str = ",") -> Source:
    """A CSV or Parquet file, or a folder of files of one of these kinds, read in the order of their names.

    Raises:
        UserError: there is no such file, or it is no table.
    """
    arrow = importlib.import_module("pyarrow")
    paths = sorted(place.glob("*.parquet")) or sorted(place.glob("*.csv")) if place.is_dir() else [place]
    if not paths or not paths[0].is_file():
        raise UserError(f"{place}: expected a .csv or .parquet file, or a folder of such files, found none")
    if paths[0].suffix.lower() not in (".csv", ".parquet", ".txt"):
        raise UserError(f"{paths[0]}: expected a file that ends in .csv or .parquet")
    opener = _parquet_batches if paths[0].suffix.lower() == ".parquet" else _csv_batches

    def read(wanted: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        for path in paths:
            start = 1
            try:
                for batch in opener(path, wanted, texts, delimiter):
                    yield str(path), start, batch
                    start += batch.num_rows
            except (arrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
                reason = str(error).split("\n")[0]
                raise UserError(f"{path}: expected a table with {first_names(list(wanted))}: {reason}") from None

    try:
        first = next(opener(paths[0], None, (), delimiter), None)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{paths[0]}: expected a table, found something else: {str(error).split(chr(10))[0]}") from None
    if first is None or not first.num_rows:
        raise UserError(f"{paths[0]}: expected a header and rows, found none")
    columns = dict(zip(first.schema.names, first.schema.types, strict=True))
    return Source(str(place), columns, first, read)


def _csv_batches(path: Path, wanted: Sequence[str] | None, texts: Sequence[str], delimiter: str) -> Iterator[Any]:
    arrow, csv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
    # An empty cell is missing; "NA" may be a country, and "nan" is not to pass for a number that is missing.
    convert = csv.ConvertOptions(
        include_columns=list(wanted) if wanted is not None else None,
        column_types={name: arrow.string() for name in texts},
        null_values=[""],
        strings_can_be_null=True,
    )
    options = csv.ReadOptions(block_size=_BLOCK_BYTES), csv.ParseOptions(delimiter=delimiter), convert
    with csv.open_csv(path, *options) as reader:
        yield from reader


def _parquet_batches(path: Path, wanted: Sequence[str] | None, texts: Sequence[str], delimiter: str) -> Iterator[Any]:
    parquet = importlib.import_module("pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        if wanted is not None and (missing := [name for name in wanted if name not in file.schema_arrow.names]):
            raise KeyError(f"no {first_names(missing)}")
        yield from file.iter_batches(_PARQUET_ROWS, columns=None if wanted is None else list(wanted))


def choose_roles(
    source: Source,
    client: str,
    time: str,
    categorical: Sequence[str],
    numerical: Mapping[str, Form],
    ignored: Sequence[str],
    form: Form,
    nested: bool,
) -> Roles:
    """Which columns are what: as they are named, and the others by what they hold.

    Texts and truth values are categories, and so are integers with at most FEW different values among the first rows;
    other numbers are numerical.

    Args:
        form: of numerical columns that are not named.
        nested: whether events are lists; other columns count only where they are named.

    Raises:
        UserError: a named column is not there (lists those that are), or is named twice; or there is none of events.
    """
    types = importlib.import_module("pyarrow.types")
    named = [client, time, *categorical, *numerical, *ignored]
    if missing := [name for name in named if name not in source.columns]:
        raise UserError(
            f"{source.name}: expected the columns {first_names(missing)}, found none of that name; it has "
            f"{first_names(list(source.columns))}"
        )
    if twice := [name for name in dict.fromkeys(named) if named.count(name) > 1]:
        raise UserError(f"{first_names(twice)}: expected each column in one place of the flags, found it in several")
    found: dict[str, Kind] = dict.fromkeys(categorical, "categorical")
    found.update(dict.fromkeys(numerical, "numerical"))
    for name, kind in source.columns.items():
        is_list = types.is_list(kind) or types.is_large_list(kind)
        if name in named or (nested and not is_list):
            continue
        if is_list and not nested:
            raise UserError(f"{source.name}: column {name} has lists: expected `prepare.py nested`")
        found[name] = (
            "numerical" if _is_numerical(kind.value_type if is_list else kind, source.first[name]) else ("categorical")
        )
    if not found:
        raise UserError(f"{source.name}: expected columns that describe events beside {client} and {time}, found none")
    ordered = [name for name in source.columns if name in found]
    return Roles(
        client,
        time,
        tuple(name for name in ordered if found[name] == "categorical"),
        tuple((name, numerical.get(name, form)) for name in ordered if found[name] == "numerical"),
    )


def _is_numerical(kind: Any, column: Any) -> bool:
    types, compute = (importlib.import_module(f"pyarrow.{name}") for name in ("types", "compute"))
    if types.is_floating(kind) or types.is_decimal(kind):
        return True
    if not types.is_integer(kind):
        return False
    values = column.flatten() if hasattr(column, "flatten") and column.type != kind else column
    return bool(compute.count_distinct(values).as_py() > FEW)


class TableReader:
    """Gives the events of tables.

    Args:
        unit: seconds of a time's unit, where times are numbers.
        marks: the column that makes a client's label a 1, and what stands there then; None: labels come from elsewhere.
        known: values of categorical columns that have the first numbers.
    """

    def __init__(
        self,
        source: Source,
        roles: Roles,
        unit: float = 1.0,
        marks: tuple[str, Sequence[str]] | None = None,
        known: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self.source, self.roles, self.unit, self.marks = source, roles, unit, marks
        self.values = [Values(name, known.get(name, ())) for name in roles.categorical]
        types = importlib.import_module("pyarrow.types")
        kind = source.columns[roles.time]
        kind = kind.value_type if hasattr(kind, "value_type") else kind
        self.has_dates = not (types.is_integer(kind) or types.is_floating(kind))
        """Whether times are dates, which have hours and days of the week."""

    @property
    def _columns(self) -> list[str]:
        roles, marked = self.roles, [self.marks[0]] if self.marks else []
        return [roles.client, roles.time, *roles.categorical, *roles.numbers, *marked]

    def long(self) -> Iterator[Batch]:
        """Of a table with a row for each event.

        Raises:
            UserError: a cell is missing or none of its column's kind; names file and row.
        """
        texts = [self.roles.client, *self.roles.categorical, *([self.marks[0]] if self.marks else [])]
        for file, start, batch in self.source.read(self._columns, texts):
            if not batch.num_rows:
                continue
            table = _Cells(file, start, batch)
            encoded = table.text(self.roles.client, required=True).dictionary_encode()
            client_n = encoded.indices.to_numpy()
            ends = np.append(np.flatnonzero(np.diff(client_n)) + 1, len(client_n))
            names = encoded.dictionary.to_pylist()
            clients = [names[number] for number in client_n[ends - 1].tolist()]
            yield self._batch(table, clients, ends)

    def nested(self, tables: Iterator[tuple[str, int, Any]] | None = None) -> Iterator[Batch]:
        """Of a table with a row for each client, whose events are lists of equal length.

        Args:
            tables: in the place of the source's.

        Raises:
            UserError: as `long`; or a row's lists differ in length, or are empty.
        """
        for file, start, batch in tables or self.source.read(self._columns, ()):
            if not batch.num_rows:
                continue
            flat, lengths_n = _flattened(batch, file, start)
            if len(empty := np.flatnonzero(lengths_n == 0)):
                raise UserError(f"{file}, row {start + int(empty[0]):,}: expected a client with events, found none")
            clients = _Cells(file, start, batch).text(self.roles.client, required=True).to_pylist()
            yield self._batch(_Cells(file, None, flat), clients, np.cumsum(lengths_n))

    def _batch(self, table: _Cells, clients: list[str], ends: NDArray[np.int64]) -> Batch:
        roles = self.roles
        codes = [values.number(table.text(values.name)) for values in self.values]
        numbers = [table.numbers(name) for name in roles.numbers]
        count = int(ends[-1])
        marks = None
        if self.marks is not None:
            texts = table.text(self.marks[0], required=True).to_pylist()
            marks = np.array([text in self.marks[1] for text in texts])
        return Batch(
            clients,
            ends,
            table.seconds(roles.time, self.unit),
            np.stack(codes, 1) if codes else np.zeros((count, 0), np.int32),
            np.stack(numbers, 1) if numbers else np.zeros((count, 0), np.float32),
            marks,
        )


class _Cells:
    """The columns of a record batch."""

    def __init__(self, file: str, start: int | None, batch: Any) -> None:
        self._file, self._start, self._batch = file, start, batch
        self._compute = importlib.import_module("pyarrow.compute")
        self._arrow = importlib.import_module("pyarrow")

    def text(self, name: str, required: bool = False) -> Any:
        """A column as pyarrow's strings."""
        column = self._batch.column(name)
        if self._arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not self._arrow.types.is_string(column.type):
            column = self._compute.cast(column, self._arrow.string())
        if required and column.null_count:
            raise self._refusal(name, self._compute.is_null(column), "a value", "an empty cell")
        return column

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = self._float(name)
        values = column.fill_null(0.0)
        finite = self._compute.is_finite(values)
        if not self._compute.all(finite).as_py():
            raise self._refusal(name, self._compute.invert(finite), "a number, or an empty cell", "NaN or infinity")
        found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        return found

    def seconds(self, name: str, unit: float) -> NDArray[np.float64]:
        """A column of times."""
        column, types = self._batch.column(name), self._arrow.types
        if column.null_count:
            raise self._refusal(name, self._compute.is_null(column), "a time", "an empty cell")
        if types.is_integer(column.type) or types.is_floating(column.type):
            values = self._float(name).to_numpy(zero_copy_only=False) * unit
        else:
            try:
                stamps = self._compute.cast(column, self._arrow.timestamp("us"))
            except self._arrow.ArrowException as error:
                raise UserError(
                    f"{self._file}: {name}: expected times such as 2026-01-31 12:30:00, or numbers: {error}"
                ) from None
            values = stamps.cast(self._arrow.int64()).to_numpy(zero_copy_only=False) / 1e6
        if not np.isfinite(values).all():
            raise self._refusal(name, self._arrow.array(~np.isfinite(values)), "a time", "NaN or infinity")
        found: NDArray[np.float64] = values
        return found

    def _float(self, name: str) -> Any:
        try:
            return self._compute.cast(self._batch.column(name), self._arrow.float64())
        except self._arrow.ArrowException as error:
            raise UserError(f"{self._file}: {name}: expected numbers: {str(error).split(chr(10))[0]}") from None

    def _refusal(self, name: str, where: Any, expected: str, found: str) -> UserError:
        row = "" if self._start is None else f", row {self._start + self._compute.index(where, True).as_py():,}"
        return UserError(f"{self._file}{row}: {name}: expected {expected}, found {found}")


def _flattened(batch: Any, file: str, start: int) -> tuple[Any, NDArray[np.int64]]:
    """A table with a row for each event, of one with lists, and how many events each row has; other columns are the
    same for all events of a row.
    """
    arrow, compute = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    is_list = [arrow.types.is_list(kind) or arrow.types.is_large_list(kind) for kind in batch.schema.types]
    lists = [name for name, each in zip(batch.schema.names, is_list, strict=True) if each]
    if not lists:
        raise UserError(f"{file}: expected columns of lists, found none: expected `prepare.py long`")
    lengths = {name: compute.list_value_length(batch.column(name)).fill_null(0).to_numpy() for name in lists}
    first = lengths[lists[0]].astype(np.int64)
    for name, found in lengths.items():
        if len(differ := np.flatnonzero(found != first)):
            row = int(differ[0])
            raise UserError(
                f"{file}, row {start + row:,}: expected as many values of {name} as of {lists[0]}, {first[row]:,}, "
                f"found {found[row]:,}"
            )
    rows = arrow.array(np.repeat(np.arange(len(first)), first))
    columns = [
        batch.column(name).flatten() if each else batch.column(name).take(rows)
        for name, each in zip(batch.schema.names, is_list, strict=True)
    ]
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names), first


def describe_roles(roles: Roles, first: Mapping[str, str]) -> str:
    """A table of the columns for people, who may have meant something else.

    Args:
        first: values of each column, as examples.
    """
    kinds = {roles.client: "client", roles.time: "time"} | dict.fromkeys(roles.categorical, "categorical")
    kinds |= {name: f"numerical, {form}" for name, form in roles.numerical}
    width, wide = max(map(len, kinds)), max(map(len, kinds.values()))
    lines = [f"{name:<{width}}  {kind:<{wide}}  {first.get(name, '')}".rstrip() for name, kind in kinds.items()]
    return f"columns:{listed(lines)}" if len(lines) <= 20 else "columns:\n  " + "\n  ".join(lines)
