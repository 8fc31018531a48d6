"""Tables of events, with a row for each event (long) or each client (nested): what columns are, and all events."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, types

from nystromformer.errors import UserError, first_line
from nystromformer.tabular.table import open_table
from nystromformer.tasks.transactions.store import MADE, Form, Stored
from nystromformer.wording import first_names, number_of

FEW = 200
"""Whole numbers with at most so many different values among the first ones are taken for categories."""
Kind = Literal["categorical", "numerical"]
_FIRST = 1 << 16
"""Rows that say what a column is."""
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
        rows: all of them, a table of pyarrow's; of CSV files all columns are text.
        is_typed: whether the tables say of which type a column is, as CSV does not.
    """

    name: str
    rows: Any
    is_typed: bool

    @cached_property
    def first(self) -> Any:
        """The first rows; of CSV files each column has the type that it looks like."""
        first = self.rows.slice(0, _FIRST)
        if self.is_typed:
            return first
        text = io.BytesIO()
        csv.write_csv(first, text)
        reading, parsing = csv.ReadOptions(block_size=text.tell()), csv.ParseOptions(newlines_in_values=True)
        conversion = csv.ConvertOptions(null_values=[""], strings_can_be_null=True)
        return csv.read_csv(io.BytesIO(text.getvalue()), reading, parsing, conversion)

    @property
    def columns(self) -> dict[str, Any]:
        """Their types of pyarrow's."""
        return dict(zip(self.first.schema.names, self.first.schema.types, strict=True))

    def check(self, expected: Sequence[str]) -> None:
        """Raise a UserError that lists the columns where one of these is not there, or there twice."""
        if wrong := [name for name in expected if self.rows.column_names.count(name) != 1]:
            raise UserError(
                f"{self.name}: expected the columns {first_names(wrong)}, found none of that name, or two; it has "
                f"{first_names(self.rows.column_names)}"
            )


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
    for table in tables:
        # Together they would have empty cells there.
        if others := set(table.columns) ^ set(tables[0].columns):
            raise UserError(
                f"{table.name}: expected the columns of {tables[0].name}, found others: {first_names(sorted(others))}"
            )
    logger.info("%s: %s", place, number_of(len(tables), "file"))
    try:
        rows = pa.concat_tables([table.arrow() for table in tables], promote_options="permissive")
    except pa.ArrowException as error:
        raise UserError(f"{place}: expected the same columns in all files: {first_line(error)}") from None
    if not rows.num_rows:
        raise UserError(f"{place}: expected a header and rows, found none")
    return Source(str(place), rows, ".parquet" in endings)


@dataclass(frozen=True)
class Events:
    """All events of some tables, in their order. n events, C categorical and F numerical columns."""

    values: dict[str, list[str]]
    """Of the clients and of each categorical column, in the order in which they are met."""
    client_n: NDArray[np.int32]
    times_n: NDArray[np.float64]
    """Seconds, of dates; or as they are."""
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
    """Tables of which it is known which columns are what.

    Args:
        since_1970: whether times that are numbers are dates all the same.
        marks: the column that makes a client's label a 1, and what stands there then; None: labels come from elsewhere.
        known: values of categorical columns that have the first numbers.
    """

    source: Source
    client: str
    time: str
    categorical: Sequence[str]
    numerical: Mapping[str, Form]
    since_1970: bool = False
    marks: tuple[str, Sequence[str]] | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def has_dates(self) -> bool:
        """Whether times are dates, which have hours and days of the week."""
        kind = self.source.columns[self.time]
        return self.since_1970 or not _is_number(kind.value_type if is_list(kind) else kind)

    def read(self) -> Events:
        """All events; a cell that is missing or none of its column's kind is refused, with its column."""
        columns = [self.client, self.time, *self.categorical, *self.numerical, *(self.marks or ())[:1]]
        rows, empty = self.source.rows.select(columns), 0
        if is_list(self.source.columns[self.time]):
            rows, empty = _flattened(self.source.name, rows)
        values, codes = {}, []
        for name in (self.client, *self.categorical):
            found, values[name] = _numbered(self._texts(rows, name, name == self.client), self.known.get(name, ()))
            codes.append(found)
        numbers = [self._numbers(rows, name) for name in self.numerical]
        marks_n = None
        if self.marks is not None:
            marked = pc.is_in(self._texts(rows, self.marks[0], required=True), pa.array(self.marks[1]))
            marks_n = marked.to_numpy(zero_copy_only=False)
        return Events(
            values,
            codes[0],
            self._seconds(rows.column(self.time).combine_chunks()),
            np.stack(codes[1:], 1) if codes[1:] else np.zeros((rows.num_rows, 0), dtype=np.int32),
            np.stack(numbers, 1) if numbers else np.zeros((rows.num_rows, 0), dtype=np.float32),
            marks_n,
            empty,
        )

    def _texts(self, rows: Any, name: str, required: bool) -> Any:
        """A column as pyarrow's strings, in which a whole number has no point."""
        column = rows.column(name).combine_chunks()
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if types.is_floating(column.type):
            whole = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), 1e18))
            integers = pc.if_else(whole, column, 0.0).cast(pa.int64()).cast(pa.string())
            column = pc.if_else(whole, integers, column.cast(pa.string()))
        elif not types.is_string(column.type):
            column = self._cast(name, column, pa.string())
        elif types.is_floating(self.source.columns[name]):
            column = pc.replace_substring_regex(column, r"^\s*(-?[0-9]+)\.0*\s*$", r"\1")
        column = pc.if_else(pc.equal(column, ""), None, column)
        if required and column.null_count:
            raise UserError(f"{self.source.name}: {name}: expected a value in each row, found an empty cell")
        return column

    def _numbers(self, rows: Any, name: str) -> NDArray[np.float32]:
        """A numerical column; NaN where a cell is empty."""
        column = self._cast(name, rows.column(name).combine_chunks(), pa.float64())
        with np.errstate(over="ignore"):
            found: NDArray[np.float32] = column.to_numpy(zero_copy_only=False).astype(np.float32)
        if np.isinf(found).any() or np.isnan(found).sum() > column.null_count:
            raise UserError(
                f"{self.source.name}: {name}: expected numbers up to 3e38 or empty cells, found NaN, infinity or a "
                "larger number"
            )
        return found

    def _seconds(self, column: Any) -> NDArray[np.float64]:
        """The times."""
        place = f"{self.source.name}: {self.time}"
        if column.null_count:
            raise UserError(f"{place}: expected a time in each row, found an empty cell")
        if self.since_1970 or not self.has_dates:
            values = self._cast(self.time, column, pa.float64()).to_numpy(zero_copy_only=False)
            if not np.isfinite(values).all():
                raise UserError(f"{place}: expected times, found NaN or infinity")
            return np.asarray(values)
        stamps = None
        with suppress(pa.ArrowException):  # which have no zone, or one
            stamps = column.cast(pa.timestamp("us", "UTC"), safe=False)
        stamps = self._cast(self.time, column, pa.timestamp("us")) if stamps is None else stamps
        found: NDArray[np.float64] = stamps.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
        return found

    def _cast(self, name: str, column: Any, kind: Any) -> Any:
        if types.is_string(column.type) and not types.is_timestamp(kind):
            column = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(column, ""), None, column)
        try:
            return column.cast(kind, safe=False)
        except pa.ArrowException as error:
            raise UserError(f"{self.source.name}: {name}: expected {kind}: {first_line(error)}") from None


def _numbered(column: Any, known: Sequence[str]) -> tuple[NDArray[np.int32], list[str]]:
    """The numbers of strings, -1 where one is missing; and the strings by their numbers, the known ones first."""
    encoded = column.dictionary_encode()
    numbers = {value: number for number, value in enumerate(known)}
    found = [numbers.setdefault(value, len(numbers)) for value in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    return np.array([*found, -1], dtype=np.int32)[places], list(numbers)


def _flattened(source: str, rows: Any) -> tuple[Any, int]:
    """A row for each event, of rows with lists of them, in which other columns are repeated; and how many are empty."""
    lists = [name for name, kind in zip(rows.schema.names, rows.schema.types, strict=True) if is_list(kind)]
    lengths = {name: pc.list_value_length(rows.column(name)).fill_null(0).to_numpy() for name in lists}
    first = lengths[lists[0]]
    if unlike := [name for name, found in lengths.items() if (found != first).any()]:
        raise UserError(f"{source}: expected as many values of {unlike[0]} as of {lists[0]} in each row")
    places = np.repeat(np.arange(len(first)), first)
    columns = {
        name: pc.list_flatten(column) if name in lists else column.take(places)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    }
    return pa.table(columns), int((first == 0).sum())


def choose_columns(
    source: Source,
    client: str,
    time: str,
    categorical: Sequence[str],
    numerical: Mapping[str, Form],
    ignored: Sequence[str],
    of_clients: Sequence[str] = (),
) -> EventTable:
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
        found[name] = _kind_of(source, name, pc.list_flatten(column) if nested else column)
    if not found:
        raise UserError(f"{source.name}: expected columns that describe events beside {client} and {time}, found none")
    ordered = [name for name in source.columns if name in found]
    return EventTable(
        source,
        client,
        time,
        [name for name in ordered if found[name] == "categorical"],
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
    texts = (column.cast(kind.value_type) if types.is_dictionary(kind) else column).drop_null()
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


def describe_columns(table: EventTable) -> str:
    """A table of the columns for people, who may have meant something else, each with its first value."""
    first = table.source.first
    kinds = {table.client: "client", table.time: "time"} | dict.fromkeys(table.categorical, "categorical")
    kinds |= {name: f"numerical, {form}" for name, form in table.numerical.items()}
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
    source.check((settings["client"], settings["time"], *known, *numbers))
    table = EventTable(source, settings["client"], settings["time"], list(known), numbers, known=known)
    if table.has_dates != settings["has_dates"]:
        expected = "dates" if settings["has_dates"] else "numbers"
        raise UserError(f"{source.name}: {table.time}: expected {expected}, as in {stored.folder}")
    return table
