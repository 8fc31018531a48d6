"""What is known of clients beside their events: labels, dates and splits; and how clients are divided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from nystromformer.config.ranges import MOST_SEED
from nystromformer.data.counter import permute
from nystromformer.errors import UserError
from nystromformer.tabular.cells import is_missing, whole_number
from nystromformer.tabular.table import open_table
from nystromformer.tasks.transactions.batches import DAY
from nystromformer.tasks.transactions.store import SPLITS

_STREAM = 41


@dataclass
class Clients:
    """By the client's name; those without a label are left out."""

    labels: dict[str, int] = field(default_factory=dict)
    dates: dict[str, float] = field(default_factory=dict)
    """When the label was asked for, in seconds: later events are left out."""
    splits: dict[str, str] = field(default_factory=dict)
    truth: dict[str, float] = field(default_factory=dict)
    """The true chance of a 1."""
    place: str = ""
    """The table that says so."""
    columns: list[str | None] = field(default_factory=list)
    """Of it, for client, label, date, split and truth."""


@dataclass(frozen=True)
class Division:
    """How clients are divided; each field is a flag."""

    out_of_time: Annotated[
        float,
        typer.Option(
            "--out_of_time",
            min=0.01,
            max=0.9,
            help="Share of the clients for testing: those with the latest dates or, without dates, the latest events.",
        ),
    ] = 0.2
    validation: Annotated[
        float,
        typer.Option(min=0.01, max=0.9, help="Share of the other clients, drawn at random, to select the best epoch."),
    ] = 0.1
    split_seed: Annotated[
        int, typer.Option("--split_seed", min=0, max=MOST_SEED, help="Random seed of the validation clients.")
    ] = 0


def read_clients(
    path: Path,
    client: str,
    target: str,
    date_column: str | None,
    split: str | None,
    truth: str | None,
    unit: float | None = None,
) -> Clients:
    """Read a table with a row for each client.

    Args:
        unit: of dates that are numbers, as the events' times are, in seconds; None: they are dates.

    Raises:
        UserError: a column is not there, a client has two rows, or a cell is none of its column's kind; names the row.
    """
    table = open_table(path)
    wanted = [name for name in (client, target, date_column, split, truth) if name is not None]
    found = Clients(place=str(path), columns=[client, target, date_column, split, truth])
    seen: set[str] = set()
    for number, cells in enumerate(table.rows(wanted), start=1):
        row = {key: None if is_missing(cell, keep_na=False) else cell for key, cell in zip(wanted, cells, strict=True)}
        # Who is 1 and not 1.0 where a table has numbers.
        place, name = table.place(number), whole_number(str(row[client])) or str(row[client])
        if name in seen:
            raise UserError(f"{place}: client {name}: expected one row of each client, found a second one")
        seen.add(name)
        if row[target] is None:
            continue
        label = str(row[target]).strip().removesuffix(".0").lower()
        if label not in ("0", "1", "true", "false"):
            raise UserError(f"{place}: {target}: expected 0, 1 or nothing, found {label:.40}")
        found.labels[name] = int(label in ("1", "true"))
        if date_column is not None:
            found.dates[name] = _seconds(row[date_column], f"{place}: {date_column}", unit)
        if split is not None:
            if row[split] not in SPLITS:
                raise UserError(f"{place}: {split}: expected one of {', '.join(SPLITS)}, found {row[split]!r:.40}")
            found.splits[name] = str(row[split])
        if truth is not None:
            found.truth[name] = _number(row[truth], f"{place}: {truth}")
            if not 0 <= found.truth[name] <= 1:
                raise UserError(f"{place}: {truth}: expected a number from 0 to 1, found {row[truth]!r:.40}")
    return found


def _number(cell: Any, place: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{place}: expected a number, found {cell!r:.40}") from None


def _seconds(cell: Any, place: str, unit: float | None) -> float:
    """The end of what a cell names: of a day without a time, or at midnight as Parquet and Excel files have days, its
    last second.
    """
    if unit is not None:
        return _number(cell, place) * unit
    try:
        value = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell))
    except ValueError:
        raise UserError(f"{place}: expected a date such as 2026-01-31, found {cell!r:.40}") from None
    seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return seconds + (DAY - 1e-6 if value.time() == time() else 0)


def divide(
    names: Sequence[str],
    labels: NDArray[np.uint8],
    last_events: NDArray[np.float64],
    clients: Clients,
    division: Division,
) -> NDArray[np.uint8]:
    """The number of each client's split, in SPLITS.

    Args:
        names: of all clients with events.
        last_events: when each one's last event was.

    Raises:
        UserError: a split has no clients of one label.
    """
    if clients.splits:
        splits = np.array([SPLITS.index(clients.splits[name]) for name in names], dtype=np.uint8)
    else:
        dates = np.array([clients.dates.get(name, last) for name, last in zip(names, last_events, strict=True)])
        order = np.argsort(dates, kind="stable")
        splits = np.zeros(len(names), dtype=np.uint8)
        splits[order[len(names) - round(division.out_of_time * len(names)) :]] = SPLITS.index("test")
        for label in (0, 1):  # as many of each as in the whole
            early = np.flatnonzero((labels == label) & (splits == 0))
            count = round(division.validation * len(early))
            if 0 < count < len(early):
                drawn = permute(np.arange(count), len(early), division.split_seed, _STREAM, label)
                splits[early[drawn]] = SPLITS.index("validation")
    for number, split in enumerate(SPLITS):
        found = set(labels[splits == number].tolist())
        if found != {0, 1}:
            what = ", ".join(map(str, sorted(found))) or "none"
            raise UserError(
                f"{clients.place or 'clients'}: expected clients of both labels, 0 and 1, in {split}, found {what}: "
                "add clients, or change --out_of_time and --validation"
            )
    return splits
