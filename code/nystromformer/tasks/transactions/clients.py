"""What is known of clients beside their events: labels, dates and splits; and how clients are divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
from nystromformer.tasks.transactions.store import DAY, SPLITS

_STREAM = 41


@dataclass(frozen=True)
class Client:
    """A client with a label.

    date: when the label was asked for, in seconds: later events are left out.
    """

    label: int
    date: float = math.inf
    split: str | None = None


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


def read_clients(path: Path, columns: Sequence[str | None], has_dates: bool) -> dict[str, Client]:
    """Read a table with a row for each client; those without a label are left out.

    Args:
        columns: of the client and its label, and of its date and split where there are such.
        has_dates: whether the events' times, and so the dates, are no numbers.
    """
    client, target, date, split = columns
    assert client is not None
    assert target is not None
    table = open_table(path)
    wanted = [name for name in columns if name is not None]
    found: dict[str, Client] = {}
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
        if split is not None and row[split] not in SPLITS:
            raise UserError(f"{place}: {split}: expected one of {', '.join(SPLITS)}, found {row[split]!r:.40}")
        found[name] = Client(
            int(label in ("1", "true")),
            math.inf if date is None else (_seconds if has_dates else _number)(row[date], f"{place}: {date}"),
            None if split is None else str(row[split]),
        )
    return found


def _number(cell: Any, place: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{place}: expected a number, found {cell!r:.40}") from None


def _seconds(cell: Any, place: str) -> float:
    """The end of what a cell names: of a day without a time, or at midnight as Parquet and Excel files have days, its
    last second.
    """
    try:
        value = cell if isinstance(cell, datetime) else datetime.fromisoformat(str(cell))
    except ValueError:
        raise UserError(f"{place}: expected a date such as 2026-01-31, found {cell!r:.40}") from None
    seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return seconds + (DAY - 1e-6 if value.time() == time() else 0)


def divide(
    source: str, clients: Sequence[Client], last_events: NDArray[np.float64], division: Division
) -> NDArray[np.uint8]:
    """The number of each client's split, in SPLITS.

    Args:
        source: of the events, as messages call it.
        last_events: when each one's last event was, for those without a date.
    """
    labels = np.array([client.label for client in clients])
    splits = np.zeros(len(clients), dtype=np.uint8)
    if any(client.split for client in clients):
        splits[:] = [SPLITS.index(str(client.split)) for client in clients]
    else:
        dates = np.array([client.date for client in clients])
        order = np.argsort(np.where(np.isinf(dates), last_events, dates), kind="stable")
        splits[order[len(clients) - round(division.out_of_time * len(clients)) :]] = SPLITS.index("test")
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
                f"{source}: expected clients of both labels, 0 and 1, in {split}, found {what}: add clients, or change "
                "--out_of_time and --validation"
            )
    return splits
