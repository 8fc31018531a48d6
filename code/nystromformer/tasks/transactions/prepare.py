"""Clients' events into a folder, whole or not at all: read piece by piece, divided, and fitted on training clients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked
from nystromformer.files.parts import PARTS, open_parts
from nystromformer.files.writing import FileStamp, NewFile
from nystromformer.tasks.transactions.batches import (
    DAY,
    GAP,
    HOUR,
    WEEKDAY,
    Batch,
    gaps,
    hours_and_weekdays,
    in_order,
    whole_clients,
)
from nystromformer.tasks.transactions.clients import Clients, Division, divide, labels_of
from nystromformer.tasks.transactions.features import fit_categories, fit_numbers
from nystromformer.tasks.transactions.metrics import gini
from nystromformer.tasks.transactions.store import (
    DTYPES,
    MANIFEST_FILE,
    NO_LABEL,
    SPLITS,
    UNKNOWN,
    Category,
    Manifest,
    SplitFacts,
    Stored,
    file_of,
    open_stored,
)
from nystromformer.tasks.transactions.tables import TableReader
from nystromformer.wording import first_names, number_of

_COUNTED = 1_000_000
"""Events whose unknown values are counted."""
_HOURS = [str(hour) for hour in range(24)]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@dataclass(frozen=True)
class Plan:
    """What is prepared from, and how.

    nested: whether a row of the tables is a client's; skip_empty: leave out clients without events, or without those
    that are kept, instead of stopping; cut_after_date: the same of events after a client's date; like: of a folder
    whose columns, vocabularies and scales these clients get, who are all of the test split.
    """

    reader: TableReader
    nested: bool
    clients: Clients
    division: Division
    sort: bool = False
    skip_empty: bool = False
    cut_after_date: bool = False
    like: Manifest | None = None

    @property
    def source(self) -> str:
        """As messages call it."""
        return self.reader.source.name

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides what is written, beside the tables."""
        roles = self.reader.roles
        return {
            "client": roles.client,
            "time": roles.time,
            "unit": self.reader.unit,
            "has_dates": self.reader.has_dates,
            "categorical": list(roles.categorical),
            "numerical": [list(each) for each in roles.numerical],
            "of_clients": self.clients.columns,
            **asdict(self.division),
            **{name: getattr(self, name) for name in ("sort", "skip_empty", "cut_after_date")},
        }


def prepare(folder: Path, command: str, origin: Mapping[str, Any], plan: Plan) -> Stored:
    """Write a folder.

    Args:
        command: as users call it.
        origin: which tables are read.

    Raises:
        UserError: the folder is not free, or the tables are none; nothing is left then.
    """
    settings = {**origin, **plan.settings}
    results = [*(file_of(folder, kind) for kind in DTYPES), folder / MANIFEST_FILE]
    with open_parts(folder / PARTS, command, settings, results) as parts:
        if not results[-1].exists():
            write_checked(results[-1], asdict(_write(folder, settings, plan)))
        parts.remove()
    return open_stored(folder)


def _write(folder: Path, settings: Mapping[str, Any], plan: Plan) -> Manifest:
    stamps, names, ends, last_events = _write_events(folder, plan)
    labels, splits, notes = _divide(names, last_events, plan)
    arrays: dict[str, NDArray[Any]] = {"ends": ends, "labels": labels, "splits": splits}
    if truth := plan.clients.truth:
        arrays["truth"] = np.array([truth.get(name, np.nan) for name in names])
    contents = {kind: values.astype(DTYPES[kind]).tobytes() for kind, values in arrays.items()}
    contents["clients"] = "".join(f"{name}\n" for name in names).encode()
    for kind, content in contents.items():
        with NewFile(file_of(folder, kind)) as file:
            file.write(content)
        stamps[kind] = file.stamp
    values_of = {values.name: list(values.numbers) for values in plan.reader.values}
    values_of |= {HOUR: _HOURS, WEEKDAY: _WEEKDAYS} if plan.reader.has_dates else {}
    if plan.like is None:
        categories = fit_categories(folder, ends, splits == 0, values_of)
        numbers = fit_numbers(folder, ends, splits == 0, [*plan.reader.roles.numerical, (GAP, "log")])
    else:
        numbers = plan.like.numbers
        categories = [
            Category(each.name, values, [*each.ids, *[UNKNOWN] * (len(values) - len(each.values))])
            for each, values in zip(plan.like.categories, values_of.values(), strict=True)
        ]
    facts, ceiling, lengths = {}, {}, np.diff(ends, prepend=0)
    for number, split in enumerate(SPLITS):
        chosen = splits == number
        own, labelled = lengths[chosen], chosen & (labels != NO_LABEL)
        facts[split] = SplitFacts(
            clients=int(chosen.sum()),
            labelled=int(labelled.sum()),
            positives=int((labels[chosen] == 1).sum()),
            events=int(own.sum()),
            shortest=int(own.min(initial=own.max(initial=0))),
            longest=int(own.max(initial=0)),
        )
        if truth and plan.like is None:
            ceiling[split] = gini(arrays["truth"][labelled], labels[labelled].astype(np.int64))
    return Manifest(plan.source, dict(settings), categories, numbers, facts, stamps, ceiling, notes)


def _write_events(
    folder: Path, plan: Plan
) -> tuple[dict[str, FileStamp], list[str], NDArray[np.int64], NDArray[np.float64]]:
    """Write categories and numbers; gives their stamps, and of each client the name, its events' end, and when the last
    one was. Marked events make labels.
    """
    names: list[str] = []
    seen: set[str] = set()
    ends, last_events = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    total = 0
    with ExitStack() as stack:
        files = {kind: stack.enter_context(NewFile(file_of(folder, kind))) for kind in ("categories", "numbers")}
        for batch in whole_clients(plan.reader.batches(plan.nested, plan.skip_empty)):
            for name in batch.clients:
                if name in seen:
                    raise UserError(
                        f"{plan.source}: client {name}: expected all events of a client together, found some after "
                        "another client's: sort the table by client and time"
                    )
                seen.add(name)
            ordered = _until_date(in_order(batch, plan.sort, plan.source), plan)
            if not ordered.clients:
                continue
            made = [hours_and_weekdays(ordered.times)] if plan.reader.has_dates else []
            columns = [ordered.categories, *(np.stack(pair, 1) for pair in made)]
            files["categories"].write(np.concatenate(columns, 1).astype(DTYPES["categories"]).tobytes())
            numbers = np.concatenate([ordered.numbers, gaps(ordered)[:, None]], 1)
            files["numbers"].write(numbers.astype(DTYPES["numbers"]).tobytes())
            names += ordered.clients
            ends.append(total + ordered.ends)
            last_events.append(ordered.times[ordered.ends - 1])
            total += len(ordered.times)
            if ordered.marks is not None:
                marked = np.maximum.reduceat(ordered.marks, np.concatenate([[0], ordered.ends[:-1]]))
                plan.clients.labels |= dict(zip(ordered.clients, map(int, marked), strict=True))
    if not names:
        raise UserError(f"{plan.source}: expected events, found none")
    stamps = {kind: file.stamp for kind, file in files.items()}
    return stamps, names, np.concatenate(ends), np.concatenate(last_events)


def _divide(
    names: list[str], last_events: NDArray[np.float64], plan: Plan
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], list[str]]:
    """Labels and splits of the clients with events, and what people should know of them."""
    notes, clients, test = [], plan.clients, SPLITS.index("test")
    if missing := list(clients.labels.keys() - set(names)):
        if not plan.skip_empty:
            raise UserError(
                f"{clients.place}: expected events of each client in {plan.source}, found none of "
                f"{number_of(len(missing), 'client')}: {first_names(sorted(missing))}; add --skip_empty to leave such "
                "out"
            )
        notes.append(f"{number_of(len(missing), 'client')} without events left out")
    labels = labels_of(names, clients)
    if plan.like is None:
        splits = divide(names, last_events, clients, plan.division)
        if late := int(((labels == NO_LABEL) & (splits == test)).sum()):
            notes.append(f"{number_of(late, 'client')} without a label, but with events of the test's time, not used")
    else:
        splits = np.full(len(names), test, dtype=np.uint8)
    if unlabelled := int(((labels == NO_LABEL) & ((splits == 0) | (plan.like is not None))).sum()):
        use = "for pretraining alone" if plan.like is None else "to be predicted"
        notes.append(f"{number_of(unlabelled, 'client')} without a label: {use}")
    return labels, splits, notes


def _until_date(batch: Batch, plan: Plan) -> Batch:
    """The events up to the clients' dates.

    Raises:
        UserError: there are later ones, and they are not to be left out; or a client has no others, and is not to be
            left out. Names the client.
    """
    limits = [plan.clients.dates.get(name, np.inf) for name in batch.clients]
    kept = batch.times <= np.repeat(limits, np.diff(batch.ends, prepend=0))
    if kept.all():
        return batch
    number = int(np.searchsorted(batch.ends, np.flatnonzero(~kept)[0], side="right"))
    name, last = batch.clients[number], batch.times[batch.ends[number] - 1]
    if not plan.cut_after_date:
        raise UserError(
            f"{plan.source}: client {name}: expected no event after its date ({plan.clients.place}), found one "
            f"{(last - limits[number]) / DAY:,.1f} days later: remove such events, or have them left out "
            "(--cut_after_date of `prepare.py long` and `nested`)"
        )
    left = np.add.reduceat(kept.astype(np.int64), np.concatenate([[0], batch.ends[:-1]]))
    if not left.all() and not plan.skip_empty:
        empty = batch.clients[int(np.flatnonzero(left == 0)[0])]
        raise UserError(
            f"{plan.source}: client {empty}: expected events up to its date, found only later ones; add --skip_empty "
            "to leave such clients out"
        )
    clients = [name for name, count in zip(batch.clients, left, strict=True) if count]
    return batch.take(np.flatnonzero(kept), clients, np.cumsum(left[left > 0]))


def describe(stored: Stored) -> str:
    """What a command says at its end."""
    manifest = stored.manifest
    lines = []
    for split, facts in manifest.splits.items():
        if not facts.clients:
            continue
        line = f"{split}: {number_of(facts.clients, 'client')}, {facts.shortest:,} to {facts.longest:,} events, "
        line += f"{facts.events / facts.clients:,.0f} on average"
        if facts.labelled:
            line += f"; {100 * facts.positives / facts.labelled:.1f} % of {facts.labelled:,} have label 1"
        if split in manifest.ceiling:
            line += f"; Gini of the truth {100 * manifest.ceiling[split]:.1f} %"
        lines.append(line)
    codes = np.asarray(stored.categories[:_COUNTED])
    for column, each in enumerate(manifest.categories):
        unknown = float((each.ids_of(codes[:, column]) == UNKNOWN).mean())
        if unknown > 0.5:
            lines.append(
                f"warning: {each.name}: {100 * unknown:.0f} % of its values are unknown to the training clients"
            )
    return "\n".join([*lines, *manifest.notes, f"data: {stored.folder}"])
