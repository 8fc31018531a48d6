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
from nystromformer.report.families import Family, read_families, write_report
from nystromformer.runs.figures import Difference, Spread, pooled_variance
from nystromformer.runs.record import Run, spread_of
from nystromformer.tables import markdown
from nystromformer.tasks.transactions.metrics import gini, interval

_REFERENCE = "lstm"
_NORMAL = 1.96


@dataclass(frozen=True)
class Tested:
    """What runs of several seeds said of the same clients: names, labels, and chances of label 1 by each seed."""

    clients: list[str]
    labels_n: NDArray[np.int64]
    chances: list[NDArray[np.float64]]

    def mean(self, weights_n: NDArray[np.float64] | None = None) -> float:
        """The mean Gini over seeds."""
        return float(np.mean([gini(each, self.labels_n, weights_n) for each in self.chances]))


@dataclass(frozen=True)
class Row:
    """A family of runs."""

    family: Family
    tested: Tested
    difference: Difference | None
    """From the reference's Gini, which is trained and tested on the same clients and rows of the same length; None of
    the reference itself.
    """

    @property
    def name(self) -> str:
        """Of the network or attention, and the objective where it is another than usual."""
        run = self.family.first
        network = run.attention_text if run.choices["network"] == "encoder" else run.choices["network"]
        return f"{network}, {run.settings.objective}" if run.settings.objective else network


def write_transactions(folders: Sequence[Path], out: Path) -> str:
    """Write the report as Markdown, and its figures as JSON beside it; returns the Markdown."""
    families = _read(folders)
    tested = [read_tested(family.runs) for family in families]
    references: dict[tuple[Any, ...], Tested] = {}
    for family, own in zip(families, tested, strict=True):
        run = family.first
        if run.choices["network"] == _REFERENCE and not run.settings.objective:
            key = _clients(run)
            references[key] = max(references.get(key, own), own, key=lambda each: len(each.chances))  # of most seeds
    rows = []
    for family, own in zip(families, tested, strict=True):
        reference = references.get(_clients(family.first))
        difference = None if reference is None or reference is own else difference_of(own, reference)
        rows.append(Row(family, own, difference))
    rows.sort(key=lambda row: (row.family.first.choices["data"], row.family.first.length, -row.tested.mean()))
    text, figures = as_markdown(rows)
    write_report(out, text, {"rows": figures})
    return text


def clients_tested_in(folder: Path) -> Tested:
    """What an experiment's runs said of their test clients."""
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


def as_markdown(rows: Sequence[Row]) -> tuple[str, list[dict[str, Any]]]:
    """The whole report, and its figures as plain data."""
    header = ["data", "events", "model", "epochs", "clients", "seeds", "test Gini, %", "95 % over clients"]
    header += ["− LSTM (95 %)", "minutes", "MiB of the process"]
    lines, figures, smallest = [], [], dict[str, float]()
    for row in rows:
        run, costs = row.family.first, row.family.costs()
        spread = spread_of(row.family.runs, lambda run: run.test_metrics["gini"])
        low, high = interval(row.tested.mean, len(row.tested.labels_n))
        reached = [str(spread), f"{100 * low:.1f} to {100 * high:.1f}", str(row.difference or "")]
        sizes = [str(run.settings.epochs), f"{run.rows['train']:,}", str(len(row.family.runs))]
        minutes = sum(costs["seconds"]) / len(costs["seconds"]) / 60
        place = [run.choices["data"], f"{run.length:,}", row.name]
        lines.append([*place, *sizes, *reached, f"{minutes:.1f}", f"{costs['memory_mib']:,.0f}"])
        own = {"gini": asdict(spread), "interval": (low, high), "costs": costs}
        difference = row.difference and asdict(row.difference)
        figures.append({"name": row.name, **row.family.record, **own, "difference": difference})
        if row.difference is not None:
            where = f"{run.choices['data']} at {run.length:,} events"
            smallest[where] = max(row.difference.smallest, smallest.get(where, 0.0))
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
    warnings = dict.fromkeys(
        f"- {row.family.first.choices['data']}: {text}" for row in rows for text in row.family.first.every_warning
    )
    parts += ["## Warnings", "\n".join(warnings)] if warnings else []
    commands = (f"- {row.name}, {row.family.first.device}: `{row.family.runs[-1].command}`" for row in rows)
    return "\n\n".join([*parts, "## Commands", "\n".join(commands)]) + "\n", figures
