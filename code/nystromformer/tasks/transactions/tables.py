"""Tables of events, with a row for each event (long) or each client (nested): what columns are, and all events."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from nystromformer.errors import UserError, first_line
from nystromformer.tabular.table import open_table
from nystromformer.tasks.transactions.store import DAY, MADE, Form, Stored
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
        first: the first record batch, to infer from.
        is_typed: whether the tables say of which type a column is, as CSV does not.
        read: gives record batches of the named columns, each with its file's name; of a CSV file all are texts.
    """

    name: str
    first: Any
    is_typed: bool
    read: Callable[[Sequence[str]], Iterator[tuple[str, Any]]]

    @property
    def columns(self) -> dict[str, Any]:
        """Their types of pyarrow's."""
        return dict(zip(self.first.schema.names, self.first.schema.types, strict=True))

    def check(self, expected: Sequence[str]) -> None:
        """Raise a UserError that lists the columns where one of these is not there."""
        if missing := [name for name in expected if name not in self.columns]:
            raise UserError(
                f"{self.name}: expected the columns {first_names(missing)}, found none of that name; it has "
                f"{first_names(list(self.columns))}"
            )

    def mapped(self, columns: Sequence[str], change: Callable[[Any], Any]) -> Source:
        """What a function makes of the batches of some columns."""

        def read(wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
            return ((file, change(batch).select(list(wanted))) for file, batch in self.read(columns))

        return replace(self, first=change(self.first), read=read)


def open_source(place: Path, column: str | None = None) -> Source:
    """A CSV, TSV or Parquet file, or a folder of files of one of these kinds, read in the order of their names; files
    without the named column are left alone.
    """
    paths = (
        [path for path in sorted(place.rglob("*")) if path.suffix.lower() in _ENDINGS] if place.is_dir() else [place]
    )
    tables = [table for table in map(open_table, paths) if column is None or column in table.columns]
    if len(endings := {path.suffix.lower() for path in paths}) != 1 or not tables:
        found = " and ".join(sorted(endings)) or "none"
        raise UserError(f"{place}: expected files that end in one of {', '.join(_ENDINGS)}, found {found}")
    logger.info("%s: %s", place, number_of(len(tables), "file"))

    def read(wanted: Sequence[str]) -> Iterator[tuple[str, Any]]:
        return ((table.name, batch) for table in tables for batch in table.batches(wanted) if batch.num_rows)

    first = next(
        (batch for table in tables for batch in table.batches(table.columns, guessed=True) if batch.num_rows), None
    )
    if first is None:
        raise UserError(f"{place}: expected a header and rows, found none")
    return Source(str(place), first, ".parquet" in endings, read)


@dataclass(frozen=True)
class Roles:
    """Which columns are what."""

    client: str
    time: str
    categorical: tuple[str, ...]
    numerical: Mapping[str, Form]


def choose_roles(
    source: Source,
    client: str,
    time: str,
    categorical: Sequence[str],
    numerical: Mapping[str, Form],
    ignored: Sequence[str],
    of_clients: Sequence[str] = (),
) -> Roles:
    """Which columns are what: as they are named, and the others by what they hold, see `_kind_of`. Row numbers, as
    pandas writes them, are left out; and where events are lists, columns of something else that no flag names.

    Args:
        of_clients: columns of the table of clients, such as the label, which are no features.
    """
    named = [client, time, *categorical, *numerical, *ignored]
    source.check(named)
    if twice := [name for name in dict.fromkeys(named) if named.count(name) > 1]:
        raise UserError(f"{first_names(twice)}: expected each column in only one of the flags, found it in several")
    found: dict[str, Kind] = dict.fromkeys(categorical, "categorical")
    found.update(dict.fromkeys(numerical, "numerical"))
    nested = is_list(source.columns[time])
    for name, kind in source.columns.items():
        if name in named or _ROW_NUMBERS.fullmatch(name) or (nested and not is_list(kind)):
            continue
        if name in of_clients and not nested:
            raise UserError(
                f"{source.name}: column {name}: also a column of the clients, whose label must not be a feature: add "
                "it to --ignore, or to --categorical or --numerical if it is one of each event"
            )
        column = source.first.column(name)
        found[name] = _kind_of(source, name, column.flatten() if nested else column)
    if not found:
        raise UserError(f"{source.name}: expected columns that describe events beside {client} and {time}, found none")
    ordered = [name for name in source.columns if name in found]
    return Roles(
        client,
        time,
        tuple(name for name in ordered if found[name] == "categorical"),
        {name: numerical.get(name, "log") for name in ordered if found[name] == "numerical"},
    )


def is_list(kind: Any) -> bool:
    """Whether a type of pyarrow's is one of lists."""
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _kind_of(source: Source, name: str, column: Any) -> Kind:
    """What a column that no flag names is taken for: texts, truth values and codes are categories.

    Codes are whole numbers of at most FEW different values among the first rows. pandas writes them as 5411.0 into CSV
    files, and makes floating numbers of them where some are missing; other floating numbers of a file that has types
    were meant as such. What may be something else is refused.
    """
    kind, place = column.type, f"{source.name}: column {name}"
    if _is_number(kind) or types.is_decimal(kind):
        may_be_codes = types.is_integer(kind) or (
            types.is_floating(kind)
            and (not source.is_typed or 0 < column.null_count < len(column))
            and pc.all(pc.equal(pc.floor(column), column)).as_py()
        )
        return "categorical" if may_be_codes and pc.count_distinct(column).as_py() <= FEW else "numerical"
    if types.is_boolean(kind):
        return "categorical"
    texts = (column.dictionary_decode() if types.is_dictionary(kind) else column).drop_null()
    if not len(texts) or not (types.is_string(texts.type) or types.is_large_string(texts.type)):
        raise UserError(f"{place}: has {number_of(len(texts), 'value')} of type {kind} in the first rows: {_CHOOSE}")
    has_number = pc.match_substring_regex(texts, _AMOUNT)
    is_code = pc.match_substring_regex(texts, "^[0-9]*$")
    if 2 * pc.sum(has_number).as_py() > len(texts) and not pc.all(is_code).as_py():
        example = texts.filter(pc.invert(is_code))[0].as_py()
        raise UserError(
            f"{place}: has numbers as or beside texts, such as {example!r:.40}: write plain numbers, or {_CHOOSE}"
        )
    if len(texts) >= _ENOUGH and pc.count_distinct(texts).as_py() > 0.9 * len(texts):
        raise UserError(f"{place}: nearly all of its values differ, as ids and times do: {_CHOOSE}")
    return "categorical"


@dataclass(frozen=True)
class Events:
    """All events of some tables, in their order. n events, C categorical and F numerical columns."""

    values: dict[str, list[str]]
    """Of the clients and of each categorical column, in the order in which they are met."""
    client_n: NDArray[np.int32]
    times_n: NDArray[np.float64]
    """Seconds."""
    codes_nC: NDArray[np.int32]
    """-1 where a value is missing."""
    numbers_nF: NDArray[np.float32]
    """NaN where one is missing."""
    marks_n: NDArray[np.bool_] | None
    """Whether an event makes its client's label a 1; None where labels come from elsewhere."""
    empty: int
    """Rows of nested tables that had no event, and are left out."""


@dataclass(frozen=True)
class EventTable:
    """Tables whose columns are known.

    Args:
        unit: seconds of a time's unit, where times are numbers.
        since_1970: whether such times are dates all the same.
        marks: the column that makes a client's label a 1, and what stands there then; None: labels come from elsewhere.
        known: values of categorical columns that have the first numbers.
    """

    source: Source
    roles: Roles
    unit: float = 1.0
    since_1970: bool = False
    marks: tuple[str, Sequence[str]] | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_dates(self) -> bool:
        """Whether times are dates, which have hours and days of the week."""
        kind = self.source.columns[self.roles.time]
        return self.since_1970 or not _is_number(kind.value_type if is_list(kind) else kind)

    def read(self) -> Events:
        """All events; a cell that is missing or none of its column's kind is refused, with its file and column."""
        roles, nested = self.roles, is_list(self.source.columns[self.roles.time])
        columns = [roles.client, roles.time, *roles.categorical, *roles.numerical]
        columns += [self.marks[0]] if self.marks else []
        numbers = {
            name: {value: number for number, value in enumerate(self.known.get(name, ()))}
            for name in (roles.client, *roles.categorical)
        }
        parts: list[tuple[NDArray[Any], ...]] = []
        empty = 0
        for file, batch in self.source.read(columns):
            if nested:
                batch, more = _flattened(batch, file)
                empty += more
            clients = self._texts(file, batch, roles.client, required=True)
            codes = [_numbered(self._texts(file, batch, name), numbers[name]) for name in roles.categorical]
            values = [self._numbers(file, batch, name) for name in roles.numerical]
            part: tuple[NDArray[Any], ...] = (
                _numbered(clients, numbers[roles.client]),
                self._seconds(file, batch),
                np.stack(codes, 1) if codes else np.zeros((batch.num_rows, 0), dtype=np.int32),
                np.stack(values, 1) if values else np.zeros((batch.num_rows, 0), dtype=np.float32),
            )
            if self.marks is not None:
                found = self._texts(file, batch, self.marks[0], required=True)
                part = (*part, pc.is_in(found, pa.array(self.marks[1])).to_numpy(zero_copy_only=False))
            parts.append(part)
        client_n, times_n, codes_nC, numbers_nF, *marks = (np.concatenate(each) for each in zip(*parts, strict=True))
        names = {name: list(each) for name, each in numbers.items()}
        return Events(names, client_n, times_n, codes_nC, numbers_nF, marks[0] if marks else None, empty)

    def _texts(self, file: str, batch: Any, name: str, required: bool = False) -> Any:
        """A column as pyarrow's strings, in which a whole number has no point."""
        column = batch.column(name)
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_floating(column.type):
            whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 1e18))
            integers = pc.if_else(whole, column, 0.0).cast(pa.int64()).cast(pa.string())
            column = pc.if_else(whole, integers, column.cast(pa.string()))
        elif not types.is_string(column.type):
            column = _cast(file, name, column, pa.string())
        elif types.is_floating(self.source.columns[name]):
            column = pc.replace_substring_regex(column, r"^\s*(-?[0-9]+)\.0*\s*$", r"\1")
        column = pc.if_else(pc.equal(column, ""), None, column)
        if required and column.null_count:
            raise UserError(f"{file}: {name}: expected a value in each row, found an empty cell")
        return column

    def _numbers(self, file: str, batch: Any, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = _cast(file, name, batch.column(name), pa.float64())
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.isinf(found).any() or np.isnan(found).sum() > column.null_count:
            raise UserError(
                f"{file}: {name}: expected numbers up to 3e38 or empty cells, found NaN, infinity or a larger number"
            )
        return found

    def _seconds(self, file: str, batch: Any) -> NDArray[np.float64]:
        """The times."""
        column = batch.column(name := self.roles.time)
        if column.null_count:
            raise UserError(f"{file}: {name}: expected a time in each row, found an empty cell")
        if self.since_1970 or not self.has_dates:
            values = _cast(file, name, column, pa.float64()).to_numpy(zero_copy_only=False) * self.unit
            if not np.isfinite(values).all():
                raise UserError(f"{file}: {name}: expected times, found NaN or infinity")
            return np.asarray(values)
        stamps = None
        with suppress(pa.ArrowException):  # which have no zone, or one
            stamps = column.cast(pa.timestamp("us", "UTC"), safe=False)
        stamps = _cast(file, name, column, pa.timestamp("us")) if stamps is None else stamps
        found: NDArray[np.float64] = stamps.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
        return found


def _numbered(column: Any, numbers: dict[str, int]) -> NDArray[np.int32]:
    """The numbers of strings, in which new ones get the next; -1 where one is missing."""
    encoded = column.dictionary_encode()
    found = [numbers.setdefault(value, len(numbers)) for value in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    numbered: NDArray[np.int32] = np.array([*found, -1], dtype=np.int32)[places]
    return numbered


def _cast(file: str, name: str, column: Any, kind: Any) -> Any:
    if types.is_string(column.type) and not types.is_timestamp(kind):
        column = pc.utf8_trim_whitespace(column)
        column = pc.if_else(pc.equal(column, ""), None, column)
    try:
        return column.cast(kind, safe=False)
    except pa.ArrowException as error:
        raise UserError(f"{file}: {name}: expected {kind}: {first_line(error)}") from None


def _flattened(batch: Any, file: str) -> tuple[Any, int]:
    """A row for each event, of rows with lists of them, in which other columns are repeated; and how many are empty."""
    lists = [name for name, kind in zip(batch.schema.names, batch.schema.types, strict=True) if is_list(kind)]
    lengths = {name: pc.list_value_length(batch.column(name)).fill_null(0).to_numpy() for name in lists}
    first = lengths[lists[0]]
    if unlike := [name for name, found in lengths.items() if (found != first).any()]:
        raise UserError(f"{file}: expected as many values of {unlike[0]} as of {lists[0]} in each row")
    rows = pa.array(np.repeat(np.arange(len(first)), first))
    columns = [
        batch.column(name).flatten() if name in lists else batch.column(name).take(rows) for name in batch.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names), int((first == 0).sum())


def describe_columns(table: EventTable) -> str:
    """A table of the columns for people, who may have meant something else, each with its first value."""
    roles, first = table.roles, table.source.first
    kinds = {roles.client: "client", roles.time: "time"} | dict.fromkeys(roles.categorical, "categorical")
    kinds |= {name: f"numerical, {form}" for name, form in roles.numerical.items()}
    kinds |= dict.fromkeys((name for name in table.source.columns if name not in kinds), "left out")
    width, wide = max(map(len, kinds)), max(map(len, kinds.values()))
    lines = ["columns:"]
    for name, kind in kinds.items():
        value = " ".join(str(first.column(name)[0]).split())[:40]
        lines.append(f"  {name:<{width}}  {kind:<{wide}}  {value}".rstrip())
    return "\n".join(lines)


def table_like(source: Source, stored: Stored) -> EventTable:
    """Other clients' events, with the columns of a prepared folder."""
    manifest, settings = stored.manifest, stored.manifest.settings
    known = {each.name: each.values for each in manifest.categories if each.name not in MADE}
    numbers = {each.name: each.form for each in manifest.numbers if each.name not in MADE}
    roles = Roles(settings["client"], settings["time"], tuple(known), numbers)
    source.check((roles.client, roles.time, *known, *numbers))
    table = EventTable(source, roles, settings["unit"], known=known)
    if table.has_dates != settings["has_dates"]:
        expected = "dates" if settings["has_dates"] else "numbers"
        raise UserError(f"{source.name}: {roles.time}: expected {expected}, as in {stored.folder}")
    return table
