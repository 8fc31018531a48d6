"""Finished runs on clients' events: Gini, differences from the LSTM, time and memory.

Shapes: n clients.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nystromformer.errors import UserError
from nystromformer.report.families import Family, check_out, read_families, write_report
from nystromformer.runs.figures import Difference, Spread, pooled_variance
from nystromformer.runs.record import Run, spread_of
from nystromformer.tables import markdown
from nystromformer.tasks.transactions.metrics import gini, interval

_REFERENCE = "lstm"
_NORMAL = 1.96


@dataclass(frozen=True)
class Row:
    """A family of runs."""

    family: Family
    gini: Spread
    interval: tuple[float, float]
    """95 %, over clients."""
    difference: Difference | None
    """From the reference's Gini, which is trained and tested on the same clients and rows of the same length; None of
    the reference itself.
    """
    costs: dict[str, Any]
    """As of `Family.costs`."""

    @property
    def data(self) -> str:
        return str(self.family.first.choices["data"])

    @property
    def name(self) -> str:
        """Of the network or attention, and the objective where it is another than usual."""
        run = self.family.first
        network = run.choices["network"]
        name = self.family.attention if network == "encoder" else network
        return f"{name}, {run.settings.objective}" if run.settings.objective else name


@dataclass(frozen=True)
class Tested:
    """What runs of several seeds said of the same clients: names, labels, and chances of label 1 by each seed."""

    clients: list[str]
    labels_n: NDArray[np.int64]
    chances: list[NDArray[np.float64]]

    def mean(self, weights_n: NDArray[np.float64] | None = None) -> float:
        """The mean Gini over seeds."""
        return float(np.mean([gini(each, self.labels_n, weights_n) for each in self.chances]))


def write_transactions(folders: Sequence[Path], out: Path) -> str:
    """Write the report as Markdown, and its figures as JSON beside it; returns the Markdown.

    Raises:
        UserError: another ending, or as `read_families`.
    """
    check_out(out)
    rows = collect(folders)
    text = as_markdown(rows)
    own = ("gini", "interval", "costs")
    figures = [
        {"name": row.name, **row.family.record, **{key: vars(row)[key] for key in own}}
        | {"gini": asdict(row.gini), "difference": row.difference and asdict(row.difference)}
        for row in rows
    ]
    write_report(out, text, {"rows": figures})
    return text


def collect(folders: Sequence[Path]) -> list[Row]:
    """The finished runs of some experiment folders.

    Raises:
        UserError: as `read_families`.
    """
    families = _read(folders)
    tested = [read_tested(family.runs) for family in families]
    references: dict[tuple[Any, ...], Tested] = {}
    for family, own in zip(families, tested, strict=True):
        run = family.first
        if run.choices["network"] == _REFERENCE and not run.settings.objective:
            key = _clients(run)
            references[key] = max(references.get(key, own), own, key=lambda each: len(each.chances))  # of most seeds
    rows = [
        _row(family, own, references.get(_clients(family.first))) for family, own in zip(families, tested, strict=True)
    ]
    return sorted(rows, key=lambda row: (row.data, row.family.first.length, -row.gini.mean))


def clients_tested_in(folder: Path) -> Tested:
    """What an experiment's runs said of their test clients.

    Raises:
        UserError: as `read_families`.
    """
    return read_tested([run for family in _read([folder]) for run in family.runs])


def _read(folders: Sequence[Path]) -> list[Family]:
    return read_families(folders, "transactions", "code/run_transactions.py", lambda run: "gini" in run.test_metrics)


def difference_of(tested: Tested, reference: Tested) -> Difference | None:
    """The mean Gini of some runs minus that of others. Its variance is that over clients, paired, and that over seeds,
    taken from the side, or sides, with several; where each has one, that over clients alone. None of other clients.
    """
    if reference.clients != tested.clients or not np.array_equal(reference.labels_n, tested.labels_n):
        return None
    low, high = interval(lambda weights: tested.mean(weights) - reference.mean(weights), len(tested.clients))
    sides = [[gini(each, one.labels_n) for each in one.chances] for one in (tested, reference)]
    pooled, freedom = pooled_variance((Spread.of(each), len(each)) for each in sides)
    of_seeds = pooled * sum(1 / len(each) for each in sides)
    of_clients = ((high - low) / (2 * _NORMAL)) ** 2
    return Difference.of(tested.mean() - reference.mean(), of_clients, of_seeds, freedom)


def read_tested(runs: Sequence[Run]) -> Tested:
    tables = []
    for run in runs:
        path = run.folder / "predictions" / "test.tsv"
        try:
            tables.append(pd.read_csv(path, sep="\t", dtype={"client": str}, quoting=csv.QUOTE_NONE))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: expected the run's predictions ({error})") from None
    names, labels = list(tables[0]["client"]), tables[0]["label"].to_numpy(np.int64)
    return Tested(names, labels, [table["probability"].to_numpy(np.float64) for table in tables])


def _clients(run: Run) -> tuple[Any, ...]:
    """What runs that are compared have in common: clients to train and to test on, and events of a row."""
    return run.choices["data"], run.tested and run.tested.data, str(run.rows), run.length


def _row(family: Family, tested: Tested, reference: Tested | None) -> Row:
    return Row(
        family,
        gini=spread_of(family.runs, lambda run: run.test_metrics["gini"]),
        interval=interval(tested.mean, len(tested.labels_n)),
        difference=None if reference is None or reference is tested else difference_of(tested, reference),
        costs=family.costs(),
    )


def as_markdown(rows: Sequence[Row]) -> str:
    """The whole report."""
    header = ["data", "events", "model", "epochs", "clients", "seeds", "test Gini, %", "95 % over clients"]
    header += ["− LSTM (95 %)", "minutes", "MiB of the process"]
    lines, smallest = [], dict[str, float]()
    for row in rows:
        run, seconds = row.family.first, row.costs["seconds"]
        figures = [str(run.settings.epochs), f"{run.rows['train']:,}", str(len(seconds))]
        low, high = row.interval
        figures += [str(row.gini), f"{100 * low:.1f} to {100 * high:.1f}", str(row.difference or "")]
        costs = [f"{sum(seconds) / len(seconds) / 60:.1f}", f"{row.costs['memory_mib']:,.0f}"]
        lines.append([row.data, f"{run.length:,}", row.name, *figures, *costs])
        if row.difference is not None:
            place = f"{row.data} at {run.length:,} events"
            smallest[place] = max(row.difference.smallest, smallest.get(place, 0.0))
    parts = [
        "# Clients' events",
        "Gini in % of the test clients (the latest ones, where the data have dates), by the epoch that was best on "
        "validation clients: mean ± standard deviation over the seeds. Intervals are of 1,000 resamples of the test "
        "clients, paired where they are of a difference; that from the LSTM counts the spread over seeds, too, where "
        "one of the two has several.",
        markdown(header, lines),
    ]
    if smallest:
        shown = "; ".join(f"{place} {100 * value:.1f} points" for place, value in smallest.items())
        parts.append(
            "Smallest difference from the LSTM that could have been shown (two-sided test at 5 %, power 80 %, clients "
            f"paired, seeds counted where one side has several): {shown}."
        )
    warnings = dict.fromkeys(f"- {row.data}: {text}" for row in rows for text in row.family.first.every_warning)
    parts += ["## Warnings", "\n".join(warnings)] if warnings else []
    commands = (f"- {row.name}, {row.family.first.device}: `{row.family.commands[-1]}`" for row in rows)
    return "\n\n".join([*parts, "## Commands", "\n".join(commands)]) + "\n"
