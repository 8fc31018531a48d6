"""Tables of events, CSV or Parquet, read a piece at a time: a row an event (long), or a row a client (nested)."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError, first_line
from nystromformer.tasks.transactions.batches import DAY, MADE, Batch, Roles, Values
from nystromformer.tasks.transactions.store import Form, Manifest, Stored
from nystromformer.wording import first_names, number_of

UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "days": float(DAY)}
"""Of times that are numbers, in seconds."""
_BLOCK_BYTES = 8 << 20
_PARQUET_ROWS = 1 << 16
FEW = 200
"""Integers with at most so many different values among the first ones are taken for categories."""
Kind = Literal["categorical", "numerical"]
_ENOUGH = 1000
"""Values of which it can be said that nearly all differ."""
_AMOUNT = r"^\s*[-+(]?\s*[$€£¥]?\s*[-+]?[0-9]+([., '][0-9]{3})*([.,][0-9]+)?\s*[$€£¥]?\s*[)-]?\s*$"
"""A number as people write it, who mean no category unless all of it is digits, as of a code."""
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_CHOOSE = "name it in --categorical, --numerical or --ignore"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Tables in one or several files of the same columns."""

    name: str
    """As messages call it."""
    columns: Mapping[str, Any]
    """Their types of pyarrow's, by name."""
    first: Any
    """The first record batch, to infer from."""
    read: Callable[..., Iterator[tuple[str, Any]]]
    """Record batches of the columns to read, of which some as text and some as numbers; each with its file's name."""


def open_source(place: Path, delimiter: str = ",", is_wanted: Callable[[Path], bool] = lambda path: True) -> Source:
    """A CSV or Parquet file, or a folder of files of one of these kinds, read in the order of their names.

    Args:
        is_wanted: of a file in a folder.

    Raises:
        UserError: there is no such file, or it is no table.
    """
    arrow = importlib.import_module("pyarrow")
    everything = sorted(place.rglob("*")) if place.is_dir() else [place]
    tables = [path for path in everything if path.is_file() and path.suffix.lower() in (".csv", ".parquet")]
    paths = [path for path in tables if path == place or is_wanted(path)]
    endings = {path.suffix.lower() for path in paths}
    if len(endings) != 1:
        raise UserError(
            f"{place}: expected a .csv or .parquet file, or a folder of files of one of these kinds, found "
            f"{' and '.join(sorted(endings)) or 'none'}"
        )
    opener = _parquet_batches if ".parquet" in endings else _csv_batches
    logger.info("%s: %s", place, number_of(len(paths), "file"))

    def read(wanted: Sequence[str] | None, texts: Sequence[str] = (), numbers: Sequence[str] = ()) -> Iterator[Any]:
        for path in paths:
            try:
                for batch in opener(path, wanted, texts, numbers, delimiter):
                    if batch.num_rows:
                        yield str(path), batch
            except (arrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
                raise UserError(f"{path}: expected a table: {first_line(error)}") from None

    _, first = next(read(None), ("", None))
    if first is None:
        raise UserError(f"{place}: expected a header and rows, found none")
    columns = dict(zip(first.schema.names, first.schema.types, strict=True))
    return Source(str(place), columns, first, read)


def _csv_batches(
    path: Path, wanted: Sequence[str] | None, texts: Sequence[str], numbers: Sequence[str], delimiter: str
) -> Iterator[Any]:
    arrow, csv = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.csv")
    # An empty cell is missing; "NA" may be a country, and "nan" is not to pass for a number that is missing.
    convert = csv.ConvertOptions(
        include_columns=list(wanted) if wanted is not None else None,
        column_types={name: arrow.string() for name in texts} | {name: arrow.float64() for name in numbers},
        null_values=[""],
        strings_can_be_null=True,
    )
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with csv.open_csv(path, csv.ReadOptions(block_size=_BLOCK_BYTES), parse, convert) as reader:
        yield from reader


def _parquet_batches(
    path: Path, wanted: Sequence[str] | None, texts: Sequence[str], numbers: Sequence[str], delimiter: str
) -> Iterator[Any]:
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
    of_clients: Sequence[str] = (),
) -> Roles:
    """Which columns are what: as they are named, and the others by what they hold.

    Texts and truth values are categories, and so are integers with at most FEW different values among the first rows;
    other numbers are numerical. Row numbers, as pandas writes them, are left out.

    Args:
        form: of numerical columns that are not named.
        nested: whether events are lists; other columns count only where they are named.
        of_clients: columns of the table of clients, such as the label, which are no features.

    Raises:
        UserError: a named column is not there (lists those that are), or is named twice; what a column holds is not
            clear; or there is none of events.
    """
    named = [client, time, *categorical, *numerical, *ignored]
    check_columns(source, named)
    if twice := [name for name in dict.fromkeys(named) if named.count(name) > 1]:
        raise UserError(f"{first_names(twice)}: expected each column in only one of the flags, found it in several")
    found: dict[str, Kind] = dict.fromkeys(categorical, "categorical")
    found.update(dict.fromkeys(numerical, "numerical"))
    for name, kind in source.columns.items():
        has_lists = is_list(kind)
        if name in named or _ROW_NUMBERS.fullmatch(name) or (nested and not has_lists):
            continue
        if has_lists and not nested:
            raise UserError(f"{source.name}: column {name} has lists: use `prepare.py nested`")
        if name in of_clients:
            raise UserError(
                f"{source.name}: column {name}: also a column of the clients, whose label must not be a feature: add "
                "it to --ignore, or to --categorical or --numerical if it is one of each event"
            )
        column = source.first.column(name)
        found[name] = _kind_of(f"{source.name}: column {name}", column.flatten() if has_lists else column)
    if not found:
        raise UserError(f"{source.name}: expected columns that describe events beside {client} and {time}, found none")
    ordered = [name for name in source.columns if name in found]
    return Roles(
        client,
        time,
        tuple(name for name in ordered if found[name] == "categorical"),
        tuple((name, numerical.get(name, form)) for name in ordered if found[name] == "numerical"),
    )


def check_columns(source: Source, expected: Sequence[str]) -> None:
    """Check that a source has some columns.

    Raises:
        UserError: one is not there; lists those that are.
    """
    if missing := [name for name in expected if name not in source.columns]:
        raise UserError(
            f"{source.name}: expected the columns {first_names(missing)}, found none of that name; it has "
            f"{first_names(list(source.columns))}"
        )


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of lists."""
    types = importlib.import_module("pyarrow.types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kind_of(place: str, column: Any) -> Kind:
    """What a column that no flag names is taken for.

    Raises:
        UserError: it may be something else.
    """
    types, compute = (importlib.import_module(f"pyarrow.{name}") for name in ("types", "compute"))
    kind = column.type
    if types.is_floating(kind) or types.is_decimal(kind):
        return "numerical"
    if types.is_integer(kind):
        return "numerical" if compute.count_distinct(column).as_py() > FEW else "categorical"
    if types.is_boolean(kind):
        return "categorical"
    texts = (column.dictionary_decode() if types.is_dictionary(kind) else column).drop_null()
    if not len(texts) or not (types.is_string(texts.type) or types.is_large_string(texts.type)):
        raise UserError(f"{place}: has {number_of(len(texts), 'value')} of type {kind} in the first rows: {_CHOOSE}")
    has_number = compute.match_substring_regex(texts, _AMOUNT)
    is_code = compute.match_substring_regex(texts, "^[0-9]*$")
    if 2 * compute.sum(has_number).as_py() > len(texts) and not compute.all(is_code).as_py():
        example = texts.filter(compute.invert(is_code))[0].as_py()
        raise UserError(
            f"{place}: has numbers as or beside texts, such as {example!r:.40}: write plain numbers, or {_CHOOSE}"
        )
    if len(texts) >= _ENOUGH and compute.count_distinct(texts).as_py() > 0.9 * len(texts):
        raise UserError(f"{place}: nearly all of its values differ, as ids and times do: {_CHOOSE}")
    return "categorical"


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
        kind = kind.value_type if is_list(kind) else kind
        self._has_times = not (types.is_integer(kind) or types.is_floating(kind))
        self.has_dates = self._has_times
        """Whether times are dates, which have hours and days of the week."""

    @property
    def _columns(self) -> list[str]:
        roles, marked = self.roles, [self.marks[0]] if self.marks else []
        return [roles.client, roles.time, *roles.categorical, *roles.numbers, *marked]

    def long(self) -> Iterator[Batch]:
        """Of a table with a row for each event.

        Raises:
            UserError: a cell is missing or none of its column's kind; names file and column.
        """
        texts = [self.roles.client, *self.roles.categorical, *([self.marks[0]] if self.marks else [])]
        # What the first rows of a CSV file show of dates, such as whole days, need not be true of all.
        texts += [self.roles.time] if self._has_times else []
        floating = importlib.import_module("pyarrow.types").is_floating
        numbers = {name for name in self.source.columns.keys() & texts if floating(self.source.columns[name])}
        for file, batch in self.source.read(self._columns, texts, self.roles.numbers):
            table = _Cells(file, batch, numbers)
            encoded = table.text(self.roles.client, required=True).dictionary_encode()
            client_n = encoded.indices.to_numpy()
            ends = np.append(np.flatnonzero(np.diff(client_n)) + 1, len(client_n))
            names = encoded.dictionary.to_pylist()
            clients = [names[number] for number in client_n[ends - 1].tolist()]
            yield self._batch(table, clients, ends)

    def nested(self, tables: Iterator[tuple[str, Any]] | None = None, skip_empty: bool = False) -> Iterator[Batch]:
        """Of a table with a row for each client, whose events are lists of equal length.

        Args:
            tables: in the place of the source's.
            skip_empty: leave out rows with empty lists.

        Raises:
            UserError: as `long`; or a row's lists differ in length, or are empty and not to be left out.
        """
        for file, batch in tables or self.source.read(self._columns):
            flat, lengths_n = _flattened(batch, file)
            names = _Cells(file, batch).text(self.roles.client, required=True).to_pylist()
            if not skip_empty and len(empty := np.flatnonzero(lengths_n == 0)):
                raise UserError(f"{file}: client {names[empty[0]]}: expected events, found none")
            if clients := [name for name, length in zip(names, lengths_n, strict=True) if length]:
                yield self._batch(_Cells(file, flat), clients, np.cumsum(lengths_n[lengths_n > 0]))

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
    """The columns of a record batch.

    Args:
        numbers: columns with texts of numbers, of which whole ones are integers: 1 where pandas writes 1.0, as it does
            if one is missing.
    """

    def __init__(self, file: str, batch: Any, numbers: Container[str] = ()) -> None:
        self._file, self._batch, self._numbers = file, batch, numbers
        self._compute = importlib.import_module("pyarrow.compute")
        self._arrow = importlib.import_module("pyarrow")

    def text(self, name: str, required: bool = False) -> Any:
        """A column as pyarrow's strings."""
        column, types, compute = self._batch.column(name), self._arrow.types, self._compute
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_floating(column.type):
            whole = compute.and_(compute.equal(compute.floor(column), column), compute.less(compute.abs(column), 1e18))
            integers = compute.if_else(whole, column, 0.0).cast(self._arrow.int64()).cast(self._arrow.string())
            column = compute.if_else(whole, integers, column.cast(self._arrow.string()))
        elif not types.is_string(column.type):
            column = self._cast(name, column, self._arrow.string())
        elif name in self._numbers:
            column = compute.replace_substring_regex(column, r"^\s*(-?[0-9]+)\.0*\s*$", r"\1")
        column = compute.if_else(compute.equal(column, ""), None, column)
        if required and column.null_count:
            raise self._refusal(name, "a value in each row, found an empty cell")
        return column

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = self._cast(name, self._batch.column(name), self._arrow.float64())
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.isinf(found).any() or np.isnan(found).sum() > column.null_count:
            raise self._refusal(name, "numbers up to 3e38 or empty cells, found NaN, infinity or a larger number")
        return found

    def seconds(self, name: str, unit: float) -> NDArray[np.float64]:
        """A column of times."""
        column, types = self._batch.column(name), self._arrow.types
        if column.null_count:
            raise self._refusal(name, "a time in each row, found an empty cell")
        if types.is_integer(column.type) or types.is_floating(column.type):
            values = self._cast(name, column, self._arrow.float64()).to_numpy(zero_copy_only=False) * unit
            if not np.isfinite(values).all():
                raise self._refusal(name, "times, found NaN or infinity")
            return np.asarray(values)
        for zone in (None, "UTC"):
            with suppress(self._arrow.ArrowException):
                stamps = self._compute.cast(column, self._arrow.timestamp("us", zone), safe=False)
                break
        else:
            stamps = self._cast(name, column, self._arrow.timestamp("us"))  # which says what is wrong
        found: NDArray[np.float64] = stamps.cast(self._arrow.int64()).to_numpy(zero_copy_only=False) / 1e6
        return found

    def _cast(self, name: str, column: Any, kind: Any) -> Any:
        try:
            return self._compute.cast(column, kind, safe=False)
        except self._arrow.ArrowException as error:
            raise self._refusal(name, f"{kind}: {first_line(error)}") from None

    def _refusal(self, name: str, text: str) -> UserError:
        return UserError(f"{self._file}: {name}: expected {text}")


def _flattened(batch: Any, file: str) -> tuple[Any, NDArray[np.int64]]:
    """A table with a row for each event, of one with lists, and how many events each row has; other columns are the
    same for all events of a row.
    """
    arrow, compute = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
    have_lists = [is_list(kind) for kind in batch.schema.types]
    lists = [name for name, each in zip(batch.schema.names, have_lists, strict=True) if each]
    if not lists:
        raise UserError(f"{file}: expected columns of lists, found none: use `prepare.py long`")
    lengths = {name: compute.list_value_length(batch.column(name)).fill_null(0).to_numpy() for name in lists}
    first = lengths[lists[0]].astype(np.int64)
    if unlike := [name for name, found in lengths.items() if (found != first).any()]:
        raise UserError(f"{file}: expected as many values of {unlike[0]} as of {lists[0]} in each row")
    rows = arrow.array(np.repeat(np.arange(len(first)), first))
    columns = [
        batch.column(name).flatten() if each else batch.column(name).take(rows)
        for name, each in zip(batch.schema.names, have_lists, strict=True)
    ]
    return arrow.RecordBatch.from_arrays(columns, names=batch.schema.names), first


def describe_columns(reader: TableReader) -> str:
    """A table of the columns for people, who may have meant something else, each with its first value."""
    roles, first = reader.roles, reader.source.first
    kinds = {roles.client: "client", roles.time: "time"} | dict.fromkeys(roles.categorical, "categorical")
    kinds |= {name: f"numerical, {form}" for name, form in roles.numerical}
    kinds |= dict.fromkeys((name for name in reader.source.columns if name not in kinds), "left out")
    width, wide = max(map(len, kinds)), max(map(len, kinds.values()))
    lines = ["columns:"]
    for name, kind in kinds.items():
        value = " ".join(str(first.column(name)[0]).split())[:40] if name in first.schema.names else ""
        lines.append(f"  {name:<{width}}  {kind:<{wide}}  {value}".rstrip())
    return "\n".join(lines)


def reader_like(source: Source, stored: Stored) -> tuple[TableReader, Manifest]:
    """A reader of other clients' events that gives the columns of a prepared folder.

    Raises:
        UserError: a column is not there, or times are of another kind.
    """
    manifest = stored.manifest
    settings = manifest.settings
    known = {each.name: each.values for each in manifest.categories if each.name not in MADE}
    numbers = {each.name: each.form for each in manifest.numbers if each.name not in MADE}
    roles = Roles(settings["client"], settings["time"], tuple(known), tuple(numbers.items()))
    check_columns(source, (roles.client, roles.time, *known, *numbers))
    reader = TableReader(source, roles, settings["unit"], known=known)
    if reader.has_dates != settings["has_dates"]:
        expected = "dates" if settings["has_dates"] else "numbers"
        raise UserError(f"{source.name}: {roles.time}: expected {expected}, as in {stored.folder}")
    return reader, manifest
