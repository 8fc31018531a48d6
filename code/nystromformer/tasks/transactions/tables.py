"""Tables of events, CSV or Parquet, read a piece at a time: a row an event (long), or a row a client (nested)."""

from __future__ import annotations

import importlib
import logging
import re
from bisect import bisect_left
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
_ENDINGS = (".csv", ".parquet")
_ENOUGH = 1000
"""Values of which it can be said that nearly all differ."""
_NUMBER = r"^\s*[-+]?[0-9]+([.,][0-9]+)?\s*$"
_AMOUNT = r"^\s*[-+(]?\s*[$€£¥]?\s*[-+]?[0-9]+([., '][0-9]{3})*([.,][0-9]+)?\s*[$€£¥]?\s*[)-]?\s*$"
"""A number as people write it, who mean no category unless all of it is digits, as of a code."""
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: 0|")
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
    read: Callable[..., Iterator[tuple[str, int, Any]]]
    """Record batches of the columns to read, of which some as text and some as numbers; and of each the file's name and
    the number of its first row."""


def open_source(place: Path, delimiter: str = ",", is_wanted: Callable[[Path], bool] = lambda path: True) -> Source:
    """A CSV or Parquet file, or a folder of files of one of these kinds, read in the order of their names.

    Args:
        is_wanted: of a file in a folder.

    Raises:
        UserError: there is no such file, or it is no table.
    """
    arrow = importlib.import_module("pyarrow")
    everything = sorted(place.rglob("*")) if place.is_dir() else [place]
    everything = [path for path in everything if not _is_hidden(path.relative_to(place))]
    tables = [path for path in everything if path.is_file() and path.suffix.lower() in _ENDINGS]
    paths = [path for path in tables if path == place or is_wanted(path)]
    if not paths:
        raise UserError(
            f"{place}: expected a file that ends in .csv or .parquet, or a folder of such files, found none"
        )
    if len(endings := {path.suffix.lower() for path in paths}) > 1:
        raise UserError(f"{place}: expected files of one kind, found {' and '.join(sorted(endings))}")
    opener = _parquet_batches if ".parquet" in endings else _csv_batches
    left_out = f", {len(tables) - len(paths)} without events left out" if len(paths) < len(tables) else ""
    logger.info("%s: %s%s", place, number_of(len(paths), "file"), left_out)

    def read(
        wanted: Sequence[str], texts: Sequence[str], numbers: Sequence[str] = ()
    ) -> Iterator[tuple[str, int, Any]]:
        for path in paths:
            start = 1
            try:
                for batch in opener(path, wanted, texts, numbers, delimiter):
                    yield str(path), start, batch
                    start += batch.num_rows
            except (arrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
                raise UserError(
                    f"{path}: expected a table with {first_names(list(wanted))}: {first_line(error)}"
                ) from None

    try:
        batches = (batch for path in paths for batch in opener(path, None, (), (), delimiter))
        first = next((batch for batch in batches if batch.num_rows), None)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{place}: expected a table, found something else: {first_line(error)}") from None
    if first is None:
        raise UserError(f"{place}: expected a header and rows, found none")
    if twice := [name for name in dict.fromkeys(first.schema.names) if first.schema.names.count(name) > 1]:
        raise UserError(f"{place}: expected each column once, found several called {first_names(twice)}")
    columns = dict(zip(first.schema.names, first.schema.types, strict=True))
    return Source(str(place), columns, first, read)


def _is_hidden(path: Path) -> bool:
    """As what macOS, Jupyter and Spark write beside tables."""
    return any(part.startswith((".", "_")) for part in path.parts)


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
    options = csv.ReadOptions(block_size=_BLOCK_BYTES), parse, convert
    with csv.open_csv(path, *options) as reader:
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
    if missing := [name for name in named if name not in source.columns]:
        raise UserError(
            f"{source.name}: expected the columns {first_names(missing)}, found none of that name; it has "
            f"{first_names(list(source.columns))}"
        )
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
    if reserved := [name for name in found if name in MADE]:
        raise UserError(
            f"{source.name}: column {reserved[0]}: has the name of a column that this command adds: rename it"
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
    if types.is_null(kind) or len(column) == column.null_count:
        raise UserError(f"{place}: empty in all of the first rows: name it in --categorical, --numerical or --ignore")
    if types.is_dictionary(kind):
        column = column.dictionary_decode()
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise UserError(f"{place}: has {kind}: name it in --categorical, --numerical or --ignore")
    texts = column.drop_null()
    is_number = compute.match_substring_regex(texts, _NUMBER)
    numbers = compute.sum(is_number).as_py() or 0
    if len(texts) / 2 < numbers < len(texts):
        example = texts.filter(compute.invert(is_number))[0].as_py()
        raise UserError(
            f"{place}: {numbers:,} of its first {len(texts):,} values are numbers, others are texts, such as "
            f"{example!r:.40}: correct those, or name it in --categorical or --ignore"
        )
    amounts = compute.and_not(
        compute.match_substring_regex(texts, _AMOUNT), compute.match_substring_regex(texts, "^[0-9]*$")
    )
    if 2 * (compute.sum(amounts).as_py() or 0) > len(texts):
        example = texts.filter(amounts)[0].as_py()
        raise UserError(
            f"{place}: has numbers as texts, such as {example!r:.40}: write them as plain numbers, such as 1760.5, or "
            "name it in --categorical or --ignore"
        )
    if len(texts) >= _ENOUGH and compute.count_distinct(texts).as_py() > 0.9 * len(texts):
        raise UserError(
            f"{place}: nearly all of its values differ, as ids and times do: name it in --ignore, or in --categorical"
        )
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
    def unit_of_numbers(self) -> float | None:
        """Seconds of a time's unit; None where times are dates."""
        return None if self.has_dates else self.unit

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
        # What the first rows of a CSV file show of dates, such as whole days, need not be true of all.
        texts += [self.roles.time] if self._has_times else []
        floating = importlib.import_module("pyarrow.types").is_floating
        numbers = {name for name in self.source.columns.keys() & texts if floating(self.source.columns[name])}
        for file, start, batch in self.source.read(self._columns, texts, self.roles.numbers):
            if not batch.num_rows:
                continue
            table = _Cells(file, start, batch, numbers)
            encoded = table.text(self.roles.client, required=True).dictionary_encode()
            client_n = encoded.indices.to_numpy()
            ends = np.append(np.flatnonzero(np.diff(client_n)) + 1, len(client_n))
            names = encoded.dictionary.to_pylist()
            clients = [names[number] for number in client_n[ends - 1].tolist()]
            yield self._batch(table, clients, ends)

    def nested(self, tables: Iterator[tuple[str, int, Any]] | None = None, skip_empty: bool = False) -> Iterator[Batch]:
        """Of a table with a row for each client, whose events are lists of equal length.

        Args:
            tables: in the place of the source's.
            skip_empty: leave out rows with empty lists.

        Raises:
            UserError: as `long`; or a row's lists differ in length, or are empty and not to be left out.
        """
        for file, start, batch in tables or self.source.read(self._columns, ()):
            if not batch.num_rows:
                continue
            flat, lengths_n = _flattened(batch, file, start)
            if len(empty := np.flatnonzero(lengths_n == 0)) and not skip_empty:
                raise UserError(f"{file}, row {start + int(empty[0]):,}: expected a client with events, found none")
            names = _Cells(file, start, batch).text(self.roles.client, required=True).to_pylist()
            if clients := [name for name, length in zip(names, lengths_n, strict=True) if length]:
                yield self._batch(_Cells(file, None, flat), clients, np.cumsum(lengths_n[lengths_n > 0]))

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

    def __init__(self, file: str, start: int | None, batch: Any, numbers: Container[str] = ()) -> None:
        self._file, self._start, self._batch, self._numbers = file, start, batch, numbers
        self._compute = importlib.import_module("pyarrow.compute")
        self._arrow = importlib.import_module("pyarrow")

    def text(self, name: str, required: bool = False) -> Any:
        """A column as pyarrow's strings."""
        column = self._batch.column(name)
        try:
            if self._arrow.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            if self._arrow.types.is_floating(column.type):
                column = self._of_floats(column)
            elif not self._arrow.types.is_string(column.type):
                column = self._compute.cast(column, self._arrow.string())
            elif name in self._numbers:
                column = self._compute.replace_substring_regex(column, r"^\s*(-?[0-9]+)\.0*\s*$", r"\1")
        except (self._arrow.ArrowException, UnicodeDecodeError) as error:
            raise UserError(f"{self._file}: {name}: expected texts or numbers: {first_line(error)}") from None
        column = self._compute.if_else(self._compute.equal(column, ""), None, column)
        if required and column.null_count:
            raise self._refusal(name, self._compute.is_null(column), "a value", "an empty cell")
        return column

    def _of_floats(self, column: Any) -> Any:
        compute, arrow = self._compute, self._arrow
        is_whole = compute.and_(compute.equal(compute.floor(column), column), compute.less(compute.abs(column), 1e18))
        whole = compute.if_else(is_whole, column, 0.0).cast(arrow.int64()).cast(arrow.string())
        return compute.if_else(is_whole, whole, column.cast(arrow.string()))

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = self._float(name)
        values = column.fill_null(0.0)
        finite = self._compute.is_finite(values)
        if not self._compute.all(finite).as_py():
            raise self._refusal(name, self._compute.invert(finite), "a number, or an empty cell", "NaN or infinity")
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.isinf(found).any():
            raise self._refusal(name, self._arrow.array(np.isinf(found)), "a number below 3e38", "a larger one")
        return found

    def seconds(self, name: str, unit: float) -> NDArray[np.float64]:
        """A column of times."""
        column, types = self._batch.column(name), self._arrow.types
        if column.null_count:
            raise self._refusal(name, self._compute.is_null(column), "a time", "an empty cell")
        if types.is_integer(column.type) or types.is_floating(column.type):
            values = self._float(name).to_numpy(zero_copy_only=False) * unit
        else:
            values = self._stamps(name, column).cast(self._arrow.int64()).to_numpy(zero_copy_only=False) / 1e6
        if not np.isfinite(values).all():
            raise self._refusal(name, self._arrow.array(~np.isfinite(values)), "a time", "NaN or infinity")
        found: NDArray[np.float64] = values
        return found

    def _stamps(self, name: str, column: Any) -> Any:
        """A column of dates, in microseconds of UTC."""
        kinds = [self._arrow.timestamp("us", zone) for zone in (None, "UTC")]
        return self._cast(name, column, kinds, "a time such as 2026-01-31 12:30:00 or a number, as in the rows before")

    def _float(self, name: str) -> Any:
        return self._cast(name, self._batch.column(name), [self._arrow.float64()], "a number")

    def _cast(self, name: str, column: Any, kinds: Sequence[Any], expected: str) -> Any:
        """A column as the first type that takes all of it.

        Raises:
            UserError: none does; names the first value that differs from those before it.
        """

        def cast(count: int) -> Any:
            for kind in kinds:
                with suppress(self._arrow.ArrowException):
                    return self._compute.cast(column[:count], kind, safe=False)
            return None

        found = cast(len(column))
        if found is None:
            place = bisect_left(range(len(column)), True, key=lambda place: cast(place + 1) is None)
            where = self._arrow.array(np.arange(len(column)) == place)
            raise self._refusal(name, where, expected, f"{column[place].as_py()!r:.40}")
        return found

    def _refusal(self, name: str, where: Any, expected: str, found: str) -> UserError:
        row = "" if self._start is None else f", row {self._start + self._compute.index(where, True).as_py():,}"
        return UserError(f"{self._file}{row}: {name}: expected {expected}, found {found}")


def _flattened(batch: Any, file: str, start: int) -> tuple[Any, NDArray[np.int64]]:
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
    for name, found in lengths.items():
        if len(differ := np.flatnonzero(found != first)):
            row = int(differ[0])
            raise UserError(
                f"{file}, row {start + row:,}: expected {first[row]:,} values of {name}, as many as of {lists[0]}, "
                f"found {found[row]:,}"
            )
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
    others = [name for name in reader.source.columns if name not in kinds and not _ROW_NUMBERS.fullmatch(name)]
    kinds |= dict.fromkeys(others, "left out")
    width, wide = max(map(len, kinds)), max(map(len, kinds.values()))
    lines = []
    for name, kind in kinds.items():
        value = ""
        if name in first.schema.names:
            with suppress(Exception):  # of dates that Python has none for
                value = " ".join(str(first.column(name)[0].as_py()).split())[:40]
        lines.append(f"  {name:<{width}}  {kind:<{wide}}  {value}".rstrip())
    return "\n".join(["columns:", *lines])


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
    if missing := [name for name in (roles.client, roles.time, *known, *numbers) if name not in source.columns]:
        raise UserError(
            f"{source.name}: expected the columns of {stored.folder}, found no {first_names(missing)}; it has "
            f"{first_names(list(source.columns))}"
        )
    reader = TableReader(source, roles, settings["unit"], known=known)
    if reader.has_dates != settings["has_dates"]:
        expected, other = ("dates", "numbers") if settings["has_dates"] else ("numbers", "dates")
        raise UserError(f"{source.name}: {roles.time}: expected {expected}, as in {stored.folder}, found {other}")
    return reader, manifest
