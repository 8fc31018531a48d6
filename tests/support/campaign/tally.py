"""The table of a campaign, and its record; of several seeds together, too."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def add(records: Sequence[Mapping[str, Any]]) -> Counts:
    """The numbers of several seeds' records together."""
    total: Counts = {}
    for record in records:
        for row, numbers in record["table"].items():
            into = total.setdefault(row, {})
            for column, number in numbers.items():
                into[column] = into.get(column, 0) + number
    return total


def table(counts: Counts) -> str:
    """The table as text."""
    header = ["", *COLUMNS, "real processes"]
    rows = [header, *([row, *(str(numbers.get(each, 0)) for each in header[1:])] for row, numbers in counts.items())]
    widths = [max(len(row[place]) for row in rows) for place in range(len(header))]
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])


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
    bad = [outcome.as_record() for outcome in outcomes if not outcome.verdict.good]
    record = {**facts, "table": count(outcomes), "bad": bad}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_records(paths: Iterable[Path]) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in paths]
