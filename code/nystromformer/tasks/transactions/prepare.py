"""Clients' events into a folder, whole or not at all: read piece by piece, divided, and fitted on training clients."""

from __future__ import annotations

from collections import Counter
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
    GAP,
    HOUR,
    WEEKDAY,
    Batch,
    gaps,
    hours_and_weekdays,
    in_order,
    keep,
    whole_clients,
)
from nystromformer.tasks.transactions.clients import Clients, Division, divide
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
from nystromformer.wording import number_of

_COUNTED = 1_000_000
"""Events whose unknown values are counted."""
_HOURS = [str(hour) for hour in range(24)]
_WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@dataclass(frozen=True)
class Plan:
    """What is prepared from, and how.

    nested: whether a row of the tables is a client's; like: of a folder whose columns, vocabularies and scales these
    clients get, who are to be predicted and all of the test split.
    """

    reader: TableReader
    nested: bool
    clients: Clients
    division: Division
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
    stamps, names, ends, last_events, notes = _write_events(folder, plan)
    if plan.like is None:
        labels = np.array([plan.clients.labels[name] for name in names], dtype=np.uint8)
        splits = divide(names, labels, last_events, plan.clients, plan.division)
    else:
        labels = np.full(len(names), NO_LABEL, dtype=np.uint8)
        splits = np.full(len(names), SPLITS.index("test"), dtype=np.uint8)
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
        own = lengths[chosen]
        facts[split] = SplitFacts(
            clients=int(chosen.sum()),
            positives=int((labels[chosen] == 1).sum()),
            events=int(own.sum()),
            shortest=int(own.min(initial=own.max(initial=0))),
            longest=int(own.max(initial=0)),
        )
        if truth and plan.like is None:
            ceiling[split] = gini(arrays["truth"][chosen], labels[chosen].astype(np.int64))
    return Manifest(plan.source, dict(settings), categories, numbers, facts, stamps, ceiling, notes)


def _write_events(
    folder: Path, plan: Plan
) -> tuple[dict[str, FileStamp], list[str], NDArray[np.int64], NDArray[np.float64], list[str]]:
    """Write categories and numbers; gives their stamps, and of each client the name, its events' end, and when the last
    one was; and what was left out. Marked events make labels.
    """
    names: list[str] = []
    seen: set[str] = set()
    ends, last_events = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    total, left_out = 0, Counter[tuple[str, str]]()
    with ExitStack() as stack:
        files = {kind: stack.enter_context(NewFile(file_of(folder, kind))) for kind in ("categories", "numbers")}
        for batch in whole_clients(plan.reader.batches(plan.nested)):
            for name in batch.clients:
                if name in seen:
                    raise UserError(
                        f"{plan.source}: client {name}: expected all events of a client together, found some after "
                        "another client's: sort the table by client"
                    )
                seen.add(name)
            if batch.marks is not None:
                marked = np.maximum.reduceat(batch.marks, np.concatenate([[0], batch.ends[:-1]]))
                plan.clients.labels |= dict(zip(batch.clients, map(int, marked), strict=True))
            ordered = in_order(batch) if plan.like is not None else _labelled(in_order(batch), plan.clients, left_out)
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
    if not names:
        of_clients = f" of clients with a label in {plan.clients.place}" if plan.clients.place else ""
        raise UserError(f"{plan.source}: expected events{of_clients}, found none")
    without_events = plan.clients.labels.keys() - set(names)
    left_out["client", "without events"] = len(without_events) if plan.like is None else plan.reader.empty
    notes = [f"{number_of(count, noun)} {why} left out" for (noun, why), count in left_out.items() if count]
    stamps = {kind: file.stamp for kind, file in files.items()}
    return stamps, names, np.concatenate(ends), np.concatenate(last_events), notes


def _labelled(batch: Batch, clients: Clients, left_out: Counter[tuple[str, str]]) -> Batch:
    """The events of clients with a label up to their dates; the others are counted."""
    lengths = np.diff(batch.ends, prepend=0)
    has_label = np.array([name in clients.labels for name in batch.clients])
    limits = np.array([clients.dates.get(name, np.inf) for name in batch.clients])
    is_late = batch.times > np.repeat(limits, lengths)
    left_out["client", "without a label"] += int((~has_label).sum())
    left_out["event", "after its client's date"] += int(is_late.sum())
    return keep(batch, np.repeat(has_label, lengths) & ~is_late)


def describe(stored: Stored) -> str:
    """What a command says at its end."""
    manifest = stored.manifest
    lines = []
    for split, facts in manifest.splits.items():
        if not facts.clients:
            continue
        line = f"{split}: {number_of(facts.clients, 'client')}, {facts.shortest:,} to {facts.longest:,} events, "
        line += f"{facts.events / facts.clients:,.0f} on average"
        if facts.positives:
            line += f"; {100 * facts.positives / facts.clients:.1f} % have label 1"
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
