"""Events of some clients at a time, as the readers of tables and the generator give them.

Shapes: n events, C categorical and F numerical columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.tasks.transactions.store import Form

DAY = 86_400
GAP, HOUR, WEEKDAY = MADE = ("time.gap", "time.hour", "time.weekday")
"""Columns that are made of times: seconds since the client's event before, and of dates hour and day of the week."""


@dataclass(frozen=True)
class Roles:
    """Which columns are what."""

    client: str
    time: str
    categorical: tuple[str, ...]
    numerical: tuple[tuple[str, Form], ...]

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.numerical)


@dataclass(frozen=True)
class Batch:
    """Events, those of a client together."""

    clients: list[str]
    ends: NDArray[np.int64]
    """Of each client's events."""
    times: NDArray[np.float64]
    """Seconds."""
    categories: NDArray[np.int32]
    """(n, C): the numbers of `Values`, -1 where one is missing."""
    numbers: NDArray[np.float32]
    """(n, F); NaN where one is missing."""
    marks: NDArray[np.bool_] | None = None
    """Of each event whether it makes its client's label a 1; None where labels come from elsewhere."""

    def take(self, places: NDArray[np.int64] | slice, clients: list[str], ends: NDArray[np.int64]) -> Batch:
        """Some events, which are these clients'."""
        marks = None if self.marks is None else self.marks[places]
        return Batch(clients, ends, self.times[places], self.categories[places], self.numbers[places], marks)


class Values:
    """The values of a categorical column, numbered in the order in which they are met.

    Args:
        known: those that have the first numbers.
    """

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.numbers = {value: number for number, value in enumerate(known)}

    def number(self, column: Any) -> NDArray[np.int32]:
        """Of each cell of a column of pyarrow's strings; -1 where it is missing."""
        encoded = column.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        table = [self.numbers.setdefault(value, len(self.numbers)) for value in values]
        numbers: NDArray[np.int32] = np.array([*table, -1], dtype=np.int32)[
            encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        ]
        return numbers


def whole_clients(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same events in batches that end where a client does."""
    held: list[Batch] = []
    for batch in batches:
        if held and held[-1].clients[-1] == batch.clients[0]:
            held.append(batch)
            if len(batch.clients) == 1:
                continue
            batch = _joined(held)
            held = []
        elif held:
            yield _joined(held)
            held = []
        start = int(batch.ends[-2]) if len(batch.ends) > 1 else 0
        if start:
            yield batch.take(slice(0, start), batch.clients[:-1], batch.ends[:-1])
        held = [batch.take(slice(start, None), batch.clients[-1:], batch.ends[-1:] - start)]
    if held:
        yield _joined(held)


def _joined(batches: list[Batch]) -> Batch:
    """One batch of several, of which each begins with the client that the one before it ends with."""
    first, *others = batches
    clients, ends = list(first.clients), first.ends
    for batch in others:
        clients += batch.clients[1:]
        ends = np.concatenate([ends[:-1], batch.ends + ends[-1]])
    parts = ("times", "categories", "numbers") if first.marks is None else ("times", "categories", "numbers", "marks")
    return Batch(clients, ends, *(np.concatenate([getattr(batch, part) for batch in batches]) for part in parts))


def in_order(batch: Batch) -> Batch:
    """Whole clients' events by time; those of one time stay in their order."""
    client_n = np.repeat(np.arange(len(batch.clients)), np.diff(batch.ends, prepend=0))
    return batch.take(np.lexsort((batch.times, client_n)), batch.clients, batch.ends)


def keep(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    """Some events, and the clients who have any of them."""
    left = np.add.reduceat(kept.astype(np.int64), np.concatenate([[0], batch.ends[:-1]]))
    clients = [name for name, count in zip(batch.clients, left, strict=True) if count]
    return batch.take(np.flatnonzero(kept), clients, np.cumsum(left[left > 0]))


def gaps(batch: Batch) -> NDArray[np.float32]:
    """Seconds since the client's event before; NaN for each client's first."""
    found = np.diff(batch.times, prepend=np.nan)
    found[np.concatenate([[0], batch.ends[:-1]])] = np.nan
    return found.astype(np.float32)


def hours_and_weekdays(times: NDArray[np.float64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Of each time the hour, and the day of the week from Monday on."""
    hours = np.floor(times / 3600).astype(np.int64) % 24
    weekdays = (np.floor(times / DAY).astype(np.int64) + 3) % 7  # 1970 began on a Thursday
    return hours.astype(np.int32), weekdays.astype(np.int32)
