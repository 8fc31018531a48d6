"""How far a run is, from its log: step, loss, tokens a second, time left; or how much of its work a command has done.

Also a program, `python3 -m nystromformer.container.progress FOLDER_OR_LOG SINCE`, which prints the same as JSON: the
launcher runs it inside containers of an engine whose folders it cannot see. Standard library only.

What a log holds is for people, and anything may have happened to it: a line that is none is passed over.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.progress import WorkDone

LOG = "log.jsonl"
_START = b'{"type": "start"'
_RECENT = 20
"""Reports that the speed is measured over."""
_RECENT_LINES = 100
_DAY = 24 * 60 * 60
_STAMPED = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d) (.*)")


@dataclass(frozen=True)
class LoggedProgress:
    """Of the run that wrote last.

    Args:
        step, steps: optimizer steps done, and those of the whole run where the log says.
        loss: of the last report.
        tokens_per_second: of the last report.
        seconds_left: at the speed of the last reports, counted from now.
        work: of a command without steps, what it has done: `wiki: 345.2/1200.0 MB`.
    """

    step: int = 0
    steps: int | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    work: str = ""


def read_progress(place: Path, since: float, now: float) -> LoggedProgress | None:
    """What was written after `since` (seconds since 1970); None where there is nothing yet, or nothing can be read.

    Args:
        place: a folder, whose own log.jsonl is read or else the newest below it; a pattern of such folders; or the log
            of a command without steps.
    """
    try:
        if place.is_file():
            return _read_work(place, since, now)
        log = place / LOG if (place / LOG).is_file() else _newest_log(place)
        if log is None or log.stat().st_mtime < since:
            return None
        records = [record for record in _last_attempt(log.read_bytes()) if record["time"] >= since]
    except OSError:
        return None
    return progress_of(records, now) if records else None


def progress_of(records: Sequence[dict[str, Any]], now: float) -> LoggedProgress:
    """The progress that records of one start of a run tell; at least one."""
    reports = [record for record in records if record["type"] == "train"]
    steps = next((record["num_steps"] for record in reversed(records) if record.get("num_steps")), None)
    report = reports[-1] if reports else {}
    return LoggedProgress(
        step=records[-1]["step"],
        steps=steps,
        loss=report.get("loss"),
        tokens_per_second=report.get("tokens_per_second"),
        seconds_left=_time_left(reports[-_RECENT:], steps, now),
    )


def _time_left(reports: Sequence[dict[str, Any]], steps: int | None, now: float) -> float | None:
    if steps is None or len(reports) < 2:
        return None
    first, last = reports[0], reports[-1]
    done, took = last["step"] - first["step"], last["time"] - first["time"]
    if done <= 0 or took <= 0:
        return None
    left: float = (steps - last["step"]) * took / done - (now - last["time"])
    return max(0.0, left)


def _newest_log(place: Path) -> Path | None:
    folders = [place] if place.is_dir() else place.parent.glob(place.name)
    logs = [Path(home) / LOG for folder in folders for home, _, files in os.walk(folder) if LOG in files]
    return max(filter(Path.is_file, logs), key=lambda path: path.stat().st_mtime, default=None)


def _last_attempt(content: bytes) -> list[dict[str, Any]]:
    """The record that begins the last start of the run, and the last ones after it."""
    records: list[dict[str, Any]] = []
    for line in reversed(content.split(b"\n")[:-1]):  # the last line may be half written
        # Of a long run, not all are read.
        if len(records) < _RECENT_LINES or line.startswith(_START):
            record = _record(line)
            records += [] if record is None else [record]
            if record is not None and record["type"] == "start":
                break
    return records[::-1]


def _record(line: bytes) -> dict[str, Any] | None:
    """What is used of a line; None for what a crash of the machine left, or anybody wrote."""
    try:
        record = json.loads(line)
        numbers = {key: record.get(key) for key in ("time", "step", "num_steps", "loss", "tokens_per_second")}
        are_finite = all(math.isfinite(value) for value in numbers.values() if value is not None)
        known = {"type": record["type"], "step": int(record["step"]), "time": float(record["time"])}
        return numbers | known if are_finite else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def _read_work(log: Path, since: float, now: float) -> LoggedProgress | None:
    """What the last line says of the work that a command has done, since its start."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_RECENT_LINES:]
    stamped = [match for match in map(_STAMPED.fullmatch, lines) if match is not None]
    said = [(match, work) for match in stamped if (work := WorkDone.parse(match[4])) is not None]
    if not said:
        return None
    match, work = said[-1]
    # A line tells the time of day alone, in a zone of its own; the last was written when the file was.
    moment = log.stat().st_mtime - (_seconds_of_day(stamped[-1]) - _seconds_of_day(match)) % _DAY
    if moment < since - 1:
        return None
    return LoggedProgress(
        tokens_per_second=work.rate if work.counted == "tokens" else None,
        seconds_left=None if work.seconds_left is None else max(0.0, work.seconds_left - (now - moment)),
        work=work.short,
    )


def _seconds_of_day(match: re.Match[str]) -> int:
    return 3600 * int(match[1]) + 60 * int(match[2]) + int(match[3])


if __name__ == "__main__":
    progress = read_progress(Path(sys.argv[1]), float(sys.argv[2]), time.time())
    sys.stdout.write("null" if progress is None else json.dumps(asdict(progress)))
