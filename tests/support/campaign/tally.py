"""The table of a campaign, and its record; of several seeds together, too."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas

from campaign.trial import Outcome
from campaign.verdicts import BAD, KINDS

COLUMNS = ("tried", *KINDS)
Counts = dict[str, dict[str, int]]
"""Rows of the table: kinds of trials, and of each how many ended how."""


def count(outcomes: Iterable[Outcome]) -> Counts:
    """The table's numbers; kills count one by one."""
    counts: Counts = {}
    for outcome in outcomes:
        row = counts.setdefault(outcome.row, dict.fromkeys((*COLUMNS, "real processes"), 0))
        row["tried"] += outcome.count
        row[outcome.verdict.kind] += outcome.count
        row["real processes"] += outcome.count * outcome.real
    return counts


def add(tables: Iterable[Counts]) -> Counts:
    """The numbers of several seeds together."""
    total: dict[str, Counter[str]] = {}
    for each in tables:
        for row, numbers in each.items():
            total.setdefault(row, Counter()).update(numbers)
    return {row: dict(numbers) for row, numbers in total.items()}


def table(counts: Counts) -> str:
    """The table as text."""
    frame = pandas.DataFrame.from_dict(counts, orient="index")
    return str(frame.reindex(columns=[*COLUMNS, "real processes"], fill_value=0).fillna(0).astype(int).to_string())


def failures(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Trials that ended badly, those that count apart left out."""
    return [outcome for outcome in outcomes if outcome.verdict.kind in _bad(outcome.row)]


def is_good(counts: Counts) -> bool:
    """Whether nothing ended badly."""
    return not any(numbers.get(kind) for row, numbers in counts.items() for kind in _bad(row))


def _bad(row: str) -> Sequence[str]:
    """Endings that may not be: what has its size and time is not looked at again, and may be silent."""
    return [kind for kind in BAD if not (kind == "silent" and "same size" in row)]


def write_record(path: Path, facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> None:
    """Write a seed's record."""
    bad = [asdict(outcome) for outcome in outcomes if not outcome.verdict.good]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "table": count(outcomes), "bad": bad}, indent=2, ensure_ascii=False) + "\n")
