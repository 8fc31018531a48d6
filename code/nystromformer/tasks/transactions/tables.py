"""Tables of events, read a piece at a time: a row an event (long), or a row a client (nested); and what columns are."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError, first_line
from nystromformer.tabular.table import open_table
from nystromformer.tasks.transactions.batches import DAY, MADE, Batch, Roles, Values
from nystromformer.tasks.transactions.store import Form, Stored
from nystromformer.wording import first_names, number_of

UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "days": float(DAY)}
"""Of times that are numbers, in seconds."""
FEW = 200
"""Whole numbers with at most so many different values among the first ones are taken for categories."""
Kind = Literal["categorical", "numerical"]
_ENOUGH = 1000
"""Values of which it can be said that nearly all differ."""
_AMOUNT = r"^\s*[-+(]?\s*[$€£¥]?\s*[-+]?[0-9]+([., '][0-9]{3})*([.,][0-9]+)?\s*[$€£¥]?\s*[)-]?\s*$"
"""A number as people write it, who mean no category unless all of it is digits, as of a code."""
_ROW_NUMBERS = re.compile(r"__index_level_\d+__|Unnamed: 0|")
_CHOOSE = "name it in --categorical, --numerical or --ignore"
_ENDINGS = (".csv", ".tsv", ".parquet")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """Tables of the same columns, or what a format makes of them.

    Args:
        name: as messages call it.
        columns: their types of pyarrow's.
        first: the first record batch, to infer from.
        is_typed: whether the tables say of which type a column is, as CSV does not.
        read: gives record batches of the named columns, each with its file's name; of a CSV file those in a mapping
            are of the given types.
    """

    name: str
    columns: Mapping[str, Any]
    first: Any
    is_typed: bool
    read: Callable[[Sequence[str], Mapping[str, Any]], Iterator[tuple[str, Any]]]

    def check(self, expected: Sequence[str]) -> None:
        """Check that it has some columns.

        Raises:
            UserError: one is not there; lists those that are.
        """
        if missing := [name for name in expected if name not in self.columns]:
            raise UserError(
                f"{self.name}: expected the columns {first_names(missing)}, found none of that name; it has "
                f"{first_names(list(self.columns))}"
            )


def open_source(place: Path, column: str | None = None) -> Source:
    """A CSV, TSV or Parquet file, or a folder of files of one of these kinds, read in the order of their names.

    Args:
        column: that a folder's files have; others are left alone.

    Raises:
        UserError: there is no such file, or it is no table.
    """
    paths = (
        [path for path in sorted(place.rglob("*")) if path.suffix.lower() in _ENDINGS] if place.is_dir() else [place]
    )
    tables = [table for table in map(open_table, paths) if column is None or column in table.columns]
    if len(endings := {path.suffix.lower() for path in paths}) != 1 or not tables:
        found = " and ".join(sorted(endings)) or "none"
        raise UserError(f"{place}: expected files that end in one of {', '.join(_ENDINGS)}, found {found}")
    logger.info("%s: %s", place, number_of(len(tables), "file"))

    def read(wanted: Sequence[str], kinds: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return ((table.name, batch) for table in tables for batch in table.batches(wanted, kinds) if batch.num_rows)

    _, first = next(read(tables[0].columns, {}), ("", None))
    if first is None:
        raise UserError(f"{place}: expected a header and rows, found none")
    columns = dict(zip(first.schema.names, first.schema.types, strict=True))
    return Source(str(place), columns, first, ".parquet" in endings, read)


def choose_roles(
    source: Source,
    client: str,
    time: str,
    categorical: Sequence[str],
    numerical: Mapping[str, Form],
    ignored: Sequence[str],
    nested: bool,
    of_clients: Sequence[str] = (),
) -> Roles:
    """Which columns are what: as they are named, and the others by what they hold, see `_kind_of`. Row numbers, as
    pandas writes them, are left out.

    Args:
        nested: whether events are lists; other columns count only where they are named.
        of_clients: columns of the table of clients, such as the label, which are no features.

    Raises:
        UserError: a named column is not there (lists those that are), or is named twice; what a column holds is not
            clear; or there is none of events.
    """
    named = [client, time, *categorical, *numerical, *ignored]
    source.check(named)
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
        found[name] = _kind_of(source, name, column.flatten() if has_lists else column)
    if not found:
        raise UserError(f"{source.name}: expected columns that describe events beside {client} and {time}, found none")
    ordered = [name for name in source.columns if name in found]
    return Roles(
        client,
        time,
        tuple(name for name in ordered if found[name] == "categorical"),
        tuple((name, numerical.get(name, "log")) for name in ordered if found[name] == "numerical"),
    )


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of lists."""
    types = importlib.import_module("pyarrow.types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _kind_of(source: Source, name: str, column: Any) -> Kind:
    """What a column that no flag names is taken for: texts, truth values and codes are categories.

    Codes are whole numbers of at most FEW different values among the first rows. pandas writes them as 5411.0 into CSV
    files, and makes floating numbers of them where some are missing; other floating numbers of a file that has types
    were meant as such.

    Raises:
        UserError: it may be something else.
    """
    types, compute = (importlib.import_module(f"pyarrow.{module}") for module in ("types", "compute"))
    kind, place = column.type, f"{source.name}: column {name}"
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        may_be_codes = types.is_integer(kind) or (
            types.is_floating(kind)
            and (not source.is_typed or 0 < column.null_count < len(column))
            and compute.all(compute.equal(compute.floor(column), column)).as_py()
        )
        return "categorical" if may_be_codes and compute.count_distinct(column).as_py() <= FEW else "numerical"
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
        self.empty = 0
        """Rows with empty lists, which are left out."""
        self._has_times = not (types.is_integer(kind) or types.is_floating(kind))
        self.has_dates = self._has_times
        """Whether times are dates, which have hours and days of the week."""

    def batches(self, nested: bool) -> Iterator[Batch]:
        """The events.

        Args:
            nested: whether a row is a client's, with lists of equal length, and not an event's.

        Raises:
            UserError: a cell is missing or none of its column's kind; or a row's lists differ in length. Names file and
                column.
        """
        arrow = importlib.import_module("pyarrow")
        roles, marked = self.roles, [self.marks[0]] if self.marks else []
        texts = [roles.client, *roles.categorical, *marked]
        # What the first rows of a CSV file show of dates, such as whole days, need not be true of all.
        kinds = dict.fromkeys([*texts, *([roles.time] if self._has_times else [])], arrow.string())
        kinds |= dict.fromkeys(roles.numbers, arrow.float64())
        columns = [roles.client, roles.time, *roles.categorical, *roles.numbers, *marked]
        for file, batch in self.source.read(columns, {} if nested else kinds):
            clients = self._texts(file, batch, roles.client, required=True)
            if nested:
                flat, lengths_n = _flattened(batch, file)
                names = [name for name, length in zip(clients.to_pylist(), lengths_n, strict=True) if length]
                self.empty += len(lengths_n) - len(names)
                ends = np.cumsum(lengths_n[lengths_n > 0])
            else:
                flat, encoded = batch, clients.dictionary_encode()
                client_n, known = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
                ends = np.append(np.flatnonzero(np.diff(client_n)) + 1, len(client_n))
                names = [known[number] for number in client_n[ends - 1].tolist()]
            if names:
                yield self._batch(file, flat, names, ends)

    def _batch(self, file: str, batch: Any, clients: list[str], ends: NDArray[np.int64]) -> Batch:
        codes = [values.number(self._texts(file, batch, values.name)) for values in self.values]
        numbers = [self._numbers(file, batch, name) for name in self.roles.numbers]
        count = int(ends[-1])
        marks = None
        if self.marks is not None:
            texts = self._texts(file, batch, self.marks[0], required=True).to_pylist()
            marks = np.array([text in self.marks[1] for text in texts], dtype=np.bool_)
        return Batch(
            clients,
            ends,
            self._seconds(file, batch),
            np.stack(codes, 1) if codes else np.zeros((count, 0), dtype=np.int32),
            np.stack(numbers, 1) if numbers else np.zeros((count, 0), dtype=np.float32),
            marks,
        )

    def _texts(self, file: str, batch: Any, name: str, required: bool = False) -> Any:
        """A column as pyarrow's strings, in which a whole number has no point."""
        arrow, compute = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.compute")
        column, types = batch.column(name), arrow.types
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_floating(column.type):
            whole = compute.and_(compute.equal(compute.floor(column), column), compute.less(compute.abs(column), 1e18))
            integers = compute.if_else(whole, column, 0.0).cast(arrow.int64()).cast(arrow.string())
            column = compute.if_else(whole, integers, column.cast(arrow.string()))
        elif not types.is_string(column.type):
            column = _cast(file, name, column, arrow.string())
        elif types.is_floating(self.source.columns[name]):
            column = compute.replace_substring_regex(column, r"^\s*(-?[0-9]+)\.0*\s*$", r"\1")
        column = compute.if_else(compute.equal(column, ""), None, column)
        if required and column.null_count:
            raise UserError(f"{file}: {name}: expected a value in each row, found an empty cell")
        return column

    def _numbers(self, file: str, batch: Any, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = _cast(file, name, batch.column(name), importlib.import_module("pyarrow").float64())
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.isinf(found).any() or np.isnan(found).sum() > column.null_count:
            raise UserError(
                f"{file}: {name}: expected numbers up to 3e38 or empty cells, found NaN, infinity or a larger number"
            )
        return found

    def _seconds(self, file: str, batch: Any) -> NDArray[np.float64]:
        """The times."""
        arrow, name = importlib.import_module("pyarrow"), self.roles.time
        column = batch.column(name)
        if column.null_count:
            raise UserError(f"{file}: {name}: expected a time in each row, found an empty cell")
        if arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type):
            values = _cast(file, name, column, arrow.float64()).to_numpy(zero_copy_only=False) * self.unit
            if not np.isfinite(values).all():
                raise UserError(f"{file}: {name}: expected times, found NaN or infinity")
            return np.asarray(values)
        stamps = None
        with suppress(arrow.ArrowException):  # which have no zone, or one
            stamps = column.cast(arrow.timestamp("us", "UTC"), safe=False)
        stamps = _cast(file, name, column, arrow.timestamp("us")) if stamps is None else stamps
        found: NDArray[np.float64] = stamps.cast(arrow.int64()).to_numpy(zero_copy_only=False) / 1e6
        return found


def _cast(file: str, name: str, column: Any, kind: Any) -> Any:
    try:
        return column.cast(kind, safe=False)
    except importlib.import_module("pyarrow").ArrowException as error:
        raise UserError(f"{file}: {name}: expected {kind}: {first_line(error)}") from None


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


def reader_like(source: Source, stored: Stored) -> TableReader:
    """A reader of other clients' events that gives the columns of a prepared folder.

    Raises:
        UserError: a column is not there, or times are of another kind.
    """
    manifest, settings = stored.manifest, stored.manifest.settings
    known = {each.name: each.values for each in manifest.categories if each.name not in MADE}
    numbers = {each.name: each.form for each in manifest.numbers if each.name not in MADE}
    roles = Roles(settings["client"], settings["time"], tuple(known), tuple(numbers.items()))
    source.check((roles.client, roles.time, *known, *numbers))
    reader = TableReader(source, roles, settings["unit"], known=known)
    if reader.has_dates != settings["has_dates"]:
        expected = "dates" if settings["has_dates"] else "numbers"
        raise UserError(f"{source.name}: {roles.time}: expected {expected}, as in {stored.folder}")
    return reader
