"""Clients' events into a folder, whole or not at all: sorted, divided, and fitted on training clients.

Shapes: n events, c clients, C categorical and F numerical columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked
from nystromformer.files.parts import PARTS, open_parts
from nystromformer.files.writing import NewFile
from nystromformer.tasks.transactions.clients import Client, Division, divide
from nystromformer.tasks.transactions.store import (
    DAY,
    DTYPES,
    FIRST,
    GAP,
    HOUR,
    MANIFEST_FILE,
    NO_LABEL,
    SPLITS,
    UNKNOWN,
    WEEKDAY,
    Category,
    Form,
    Manifest,
    Number,
    Stored,
    file_of,
    open_stored,
    shaped,
)
from nystromformer.tasks.transactions.tables import EventTable
from nystromformer.wording import number_of

MOST_KNOWN = 10_000
"""Values of a category that have an embedding of their own."""
_COUNTED = 1_000_000
"""Events whose unknown values are counted."""
_HOURS = [str(hour) for hour in range(24)]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def prepare(
    folder: Path,
    command: str,
    origin: Mapping[str, Any],
    table: EventTable,
    division: Division,
    clients: Mapping[str, Client] | None = None,
    like: Manifest | None = None,
) -> Stored:
    """Write a folder.

    Args:
        command: as users call it.
        origin: what decides what is read, beside the table's columns.
        clients: by their names; of tables whose marks make labels None.
        like: of a folder whose columns, vocabularies and scales these clients get, who are to be predicted and all of
            the test split.
    """
    settings = {
        **origin,
        "client": table.client,
        "time": table.time,
        "has_dates": table.has_dates,
        "categorical": list(table.categorical),
        "numerical": [list(each) for each in table.numerical.items()],
        **asdict(division),
    }
    results = [*(file_of(folder, kind) for kind in DTYPES), folder / MANIFEST_FILE]
    with open_parts(folder / PARTS, command, settings, results) as parts:
        if not results[-1].exists():
            write_checked(results[-1], asdict(_write(folder, settings, table, division, clients or {}, like)))
        parts.remove()
    return open_stored(folder)


def _write(
    folder: Path,
    settings: dict[str, Any],
    table: EventTable,
    division: Division,
    clients: Mapping[str, Client],
    like: Manifest | None,
) -> Manifest:
    source, events = table.source.name, table.read()
    names = events.values[table.client]
    if events.marks_n is not None:
        marked = set(events.client_n[events.marks_n].tolist())
        clients = {name: Client(int(number in marked)) for number, name in enumerate(names)}
    elif like is not None:
        clients = dict.fromkeys(names, Client(NO_LABEL))
    has_label = np.array([name in clients for name in names], dtype=bool)
    limits = np.array([clients[name].date if name in clients else math.inf for name in names])
    is_late = events.times_n > limits[events.client_n]
    # By client and time; events of one time stay in their order.
    order = np.lexsort((events.times_n, events.client_n))
    order = order[(has_label[events.client_n] & ~is_late)[order]]
    if not len(order):
        raise UserError(f"{source}: expected events of clients with a label, found none")
    lengths = np.bincount(events.client_n[order], minlength=len(names))
    names, lengths = [name for name, length in zip(names, lengths, strict=True) if length], lengths[lengths > 0]
    without_events = events.empty if like is not None else len(clients.keys() - set(names))
    left_out = {
        "without a label": (int((~has_label).sum()), "client"),
        "after its client's date": (int(is_late.sum()), "event"),
        "without events": (without_events, "client"),
    }
    notes = [f"{number_of(count, noun)} {why} left out" for why, (count, noun) in left_out.items() if count]

    ends, times_n = np.cumsum(lengths), events.times_n[order]
    labels = np.array([clients[name].label for name in names], dtype=np.uint8)
    if like is None:
        splits = divide(source, [clients[name] for name in names], times_n[ends - 1], division)
    else:
        splits = np.full(len(names), SPLITS.index("test"), dtype=np.uint8)
    values = {name: events.values[name] for name in table.categorical}
    codes_nC, numbers_nF = events.codes_nC[order], events.numbers_nF[order]
    if table.has_dates:
        values |= {HOUR: _HOURS, WEEKDAY: _WEEKDAYS}
        hours, days = np.floor(times_n / 3600).astype(np.int64), np.floor(times_n / DAY).astype(np.int64)
        made_n2 = np.stack([hours % 24, (days + 3) % 7], 1)  # 1970 began on a Thursday
        codes_nC = np.concatenate([codes_nC, made_n2.astype(np.int32)], 1)
    gaps_n = np.diff(times_n, prepend=np.nan)
    gaps_n[ends - lengths] = np.nan
    numbers_nF = np.concatenate([numbers_nF, gaps_n.astype(np.float32)[:, None]], 1)

    arrays: dict[str, NDArray[Any]] = {
        "categories": codes_nC,
        "numbers": numbers_nF,
        "ends": ends,
        "labels": labels,
        "splits": splits,
    }
    contents = {kind: each.astype(DTYPES[kind]).tobytes() for kind, each in arrays.items()}
    contents["clients"] = "".join(f"{name}\n" for name in names).encode()
    stamps = {}
    for kind, content in contents.items():
        with NewFile(file_of(folder, kind)) as file:
            file.write(content)
        stamps[kind] = file.stamp
    if like is None:
        trained_n = np.repeat(splits == SPLITS.index("train"), lengths)
        categories = _fit_categories(codes_nC[trained_n], values)
        numbers = _fit_numbers(numbers_nF[trained_n], {**table.numerical, GAP: "log"})
    else:
        numbers = like.numbers
        categories = [
            replace(each, values=found, ids=[*each.ids, *[UNKNOWN] * (len(found) - len(each.values))])
            for each, found in zip(like.categories, values.values(), strict=True)
        ]
    return Manifest(source, settings, categories, numbers, stamps, notes)


def _fit_categories(codes_nC: NDArray[np.int32], values: Mapping[str, list[str]]) -> list[Category]:
    """The values' ids: the training clients' most frequent ones first; the others are unknown."""
    categories = []
    for codes_n, (name, each) in zip(codes_nC.T, values.items(), strict=True):
        count = np.bincount(codes_n[codes_n >= 0], minlength=len(each))
        # Equally frequent ones by their names: the order in which they were met is other clients' matter, too.
        order = sorted(range(len(each)), key=lambda number: (-count[number], each[number]))
        ids = [UNKNOWN] * len(each)
        for place, number in enumerate(order[:MOST_KNOWN]):
            ids[number] = FIRST + place if count[number] else UNKNOWN
        categories.append(Category(name, each, ids))
    return categories


def _fit_numbers(numbers_nF: NDArray[np.float32], columns: Mapping[str, Form]) -> list[Number]:
    """Scales of numerical columns."""
    numbers = []
    for column_n, (name, form) in zip(numbers_nF.T, columns.items(), strict=True):
        values = shaped(column_n, form)
        values = values[~np.isnan(values)]
        mean = float(values.sum() / len(values)) if len(values) else 0.0
        deviation = float(np.sqrt(max((values**2).sum() / len(values) - mean**2, 0.0))) if len(values) else 0.0
        numbers.append(Number(name, form, mean, deviation if deviation > 1e-9 else 1.0))
    return numbers


def describe(stored: Stored) -> str:
    """What a command says at its end."""
    manifest = stored.manifest
    lines = []
    for split in SPLITS:
        if not len(clients := stored.clients_of(split)):
            continue
        lengths = stored.lengths[clients]
        line = f"{split}: {number_of(len(clients), 'client')}, {lengths.min():,} to {lengths.max():,} events, "
        line += f"{lengths.mean():,.0f} on average"
        if positives := int((stored.labels[clients] == 1).sum()):
            line += f"; {100 * positives / len(clients):.1f} % have label 1"
        lines.append(line)
    codes = np.asarray(stored.categories[:_COUNTED])
    for column, each in enumerate(manifest.categories):
        unknown = float((each.ids_of(codes[:, column]) == UNKNOWN).mean())
        if unknown > 0.5:
            lines.append(
                f"warning: {each.name}: {100 * unknown:.0f} % of its values are unknown to the training clients"
            )
    return "\n".join([*lines, *manifest.notes, f"data: {stored.folder}"])
