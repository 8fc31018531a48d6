"""Clients' events into a folder, whole or not at all: read piece by piece, divided, and fitted on training clients."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.runs.store import Store, write_folder
from nystromformer.tasks.transactions.batches import (
    Batch,
    Roles,
    Values,
    gaps,
    hours_and_weekdays,
    in_order,
    whole_clients,
)
from nystromformer.tasks.transactions.clients import Clients, Division, check_classes, divide, labels_of
from nystromformer.tasks.transactions.features import fit_categories, fit_numbers
from nystromformer.tasks.transactions.metrics import gini
from nystromformer.tasks.transactions.store import (
    DTYPES,
    MANIFEST_FILE,
    NO_LABEL,
    SPLITS,
    UNKNOWN,
    Category,
    Form,
    Manifest,
    SplitFacts,
    Stored,
    file_of,
    open_stored,
    write_manifest,
)
from nystromformer.wording import first_names, number_of

GAP, HOUR, WEEKDAY = "time.gap", "time.hour", "time.weekday"
"""Columns that are made of times: seconds since the client's event before, and of dates hour and day of the week."""
_HOURS = [str(hour) for hour in range(24)]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@dataclass(frozen=True)
class Asked:
    """What is prepared from, and how."""

    batches: Iterable[Batch]
    roles: Roles
    values: list[Values]
    has_dates: bool
    clients: Clients
    division: Division
    sort: bool = False
    skip_empty: bool = False
    """Leave out clients without events instead of stopping."""
    source: str = ""
    like: Manifest | None = None
    """Of a folder whose columns, vocabularies and scales these clients get, who are all of the test split."""


def prepare(folder: Path, command: str, settings: Mapping[str, Any], asked: Asked) -> Stored:
    """Write a folder.

    Args:
        command: as users call it.
        settings: all that decides what is written.

    Raises:
        UserError: the folder is not free, or the tables are none; nothing is left then.
    """

    def write(store: Store) -> list[str]:
        manifest = _write(store.whole, settings, asked)
        write_manifest(store.whole, manifest)
        return [*(file_of(store.whole, kind).name for kind in manifest.files), MANIFEST_FILE]

    files = [*(file_of(folder, kind) for kind in DTYPES), folder / MANIFEST_FILE]
    write_folder(folder, command, settings, files, write)
    return open_stored(folder)


def _write(folder: Path, settings: Mapping[str, Any], asked: Asked) -> Manifest:
    roles, clients, notes = asked.roles, asked.clients, list[str]()
    names: list[str] = []
    seen: set[str] = set()
    ends, last_events = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    total, now = 0, time.time()
    with ExitStack() as stack:
        files = {kind: stack.enter_context(NewFile(file_of(folder, kind))) for kind in ("categories", "numbers")}
        for batch in whole_clients(asked.batches):
            if again := [name for name in batch.clients if name in seen]:
                raise UserError(
                    f"{asked.source}: client {again[0]}: expected all events of a client together, found some after "
                    "another client's: sort the table by client and time"
                )
            seen.update(batch.clients)
            ordered = in_order(batch, asked.sort, asked.source)
            _check_future(ordered, clients, asked, now)
            made = [hours_and_weekdays(ordered.times)] if asked.has_dates else []
            columns = [ordered.categories, *(np.stack(pair, 1) for pair in made)]
            files["categories"].write(np.concatenate(columns, 1).astype(DTYPES["categories"]).tobytes())
            numbers = np.concatenate([ordered.numbers, gaps(ordered)[:, None]], 1)
            files["numbers"].write(numbers.astype(DTYPES["numbers"]).tobytes())
            names += batch.clients
            ends.append(total + ordered.ends)
            last_events.append(ordered.times[ordered.ends - 1])
            total += len(ordered.times)
            if ordered.marks is not None:
                marked = np.maximum.reduceat(ordered.marks, np.concatenate([[0], ordered.ends[:-1]]))
                clients.labels |= dict(zip(batch.clients, map(int, marked), strict=True))
    if not names:
        raise UserError(f"{asked.source}: expected events, found none")
    if missing := [name for name in clients.labels if name not in seen]:
        if not asked.skip_empty:
            raise UserError(
                f"{clients.place}: expected events of each client in {asked.source}, found none of "
                f"{number_of(len(missing), 'client')}: {first_names(missing)}; add --skip_empty to leave such out"
            )
        notes.append(f"{number_of(len(missing), 'client')} without events left out")
    all_ends, labels = np.concatenate(ends), labels_of(names, clients)
    if asked.like is None:
        splits = divide(names, np.concatenate(last_events), clients, asked.division)
        check_classes(labels, splits, clients.place or asked.source)
    else:
        splits = np.full(len(names), SPLITS.index("test"), dtype=np.uint8)
    if unlabelled := int((labels == NO_LABEL).sum()):
        use = "for pretraining alone" if asked.like is None else "to be predicted"
        notes.append(f"{number_of(unlabelled, 'client')} without a label: {use}")
    arrays: dict[str, NDArray[Any]] = {"ends": all_ends, "labels": labels, "splits": splits}
    if clients.truth:
        arrays["truth"] = np.array([clients.truth.get(name, np.nan) for name in names])
    for kind, values in arrays.items():
        with NewFile(file_of(folder, kind)) as file:
            file.write(values.astype(DTYPES[kind]).tobytes())
        files[kind] = file
    with NewFile(file_of(folder, "clients")) as file:
        file.write("".join(f"{name}\n" for name in names).encode())
    files["clients"] = file
    trained = splits == 0
    made_values = [_HOURS, _WEEKDAYS] if asked.has_dates else []
    category_names = [*roles.categorical, *([HOUR, WEEKDAY] if asked.has_dates else [])]
    category_values = [*(list(values.numbers) for values in asked.values), *made_values]
    columns_of_numbers: list[tuple[str, Form]] = [*roles.numerical, (GAP, "log")]
    if asked.like is None:
        categories = fit_categories(folder, all_ends, trained, category_names, category_values)
        fitted = fit_numbers(folder, all_ends, trained, columns_of_numbers)
    else:
        fitted = asked.like.numbers
        categories = [
            Category(each.name, values, [*each.ids, *[UNKNOWN] * (len(values) - len(each.values))])
            for each, values in zip(asked.like.categories, category_values, strict=True)
        ]
    return Manifest(
        source=asked.source,
        settings=dict(settings),
        categories=categories,
        numbers=fitted,
        splits={
            split: _facts(splits == number, labels, np.diff(all_ends, prepend=0)) for number, split in enumerate(SPLITS)
        },
        files={kind: file.stamp for kind, file in files.items()},
        ceiling=_ceiling(arrays.get("truth"), labels, splits),
        notes=notes,
    )


def _check_future(batch: Batch, clients: Clients, asked: Asked, now: float) -> None:
    """Check that no event is later than the client's date, or of tables with dates than now.

    Raises:
        UserError: one is; names the client.
    """
    latest = batch.times[batch.ends - 1]
    for name, last in zip(batch.clients, latest.tolist(), strict=True):
        date = clients.dates.get(name, now if asked.has_dates else None)
        if date is not None and last > date:
            when = "its date" if name in clients.dates else "now"
            raise UserError(
                f"{asked.source}: client {name}: expected no event after {when}, found one "
                f"{(last - date) / 86_400:,.1f} days later: what is not known yet must not be learned from"
            )


def _facts(chosen: NDArray[np.bool_], labels: NDArray[np.uint8], lengths: NDArray[np.int64]) -> SplitFacts:
    own = lengths[chosen]
    return SplitFacts(
        clients=int(chosen.sum()),
        labelled=int((labels[chosen] != NO_LABEL).sum()),
        positives=int((labels[chosen] == 1).sum()),
        events=int(own.sum()),
        shortest=int(own.min(initial=own.max(initial=0))),
        longest=int(own.max(initial=0)),
    )


def _ceiling(
    truth: NDArray[np.float64] | None, labels: NDArray[np.uint8], splits: NDArray[np.uint8]
) -> dict[str, float]:
    if truth is None:
        return {}
    found = {}
    for number, split in enumerate(SPLITS):
        chosen = (splits == number) & (labels != NO_LABEL)
        found[split] = gini(truth[chosen], labels[chosen].astype(np.int64))
    return found


def describe(stored: Stored) -> str:
    """What a command says at its end."""
    manifest = stored.manifest
    lines = [
        f"{split}: {number_of(facts.clients, 'client')}, {facts.shortest:,} to {facts.longest:,} events, "
        f"{facts.events / facts.clients:,.0f} on average; {100 * facts.positives / facts.labelled:.1f} % of "
        f"{facts.labelled:,} have label 1"
        + (f"; Gini of the truth {100 * manifest.ceiling[split]:.1f} %" if manifest.ceiling else "")
        for split, facts in manifest.splits.items()
        if facts.labelled
    ]
    return "\n".join([*lines, *manifest.notes, f"data: {stored.folder}"])
