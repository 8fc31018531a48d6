"""How far a run is, from its log: step, loss, tokens a second, time left.

Also a program, `python3 -m nystromformer.container.progress FOLDER SINCE`, which prints the same as JSON: the launcher
runs it inside containers of an engine whose folders it cannot see. Standard library only.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

LOG = "log.jsonl"
_TAIL_BYTES = 1 << 16
_RECENT = 20
"""Reports that the speed is measured over."""


@dataclass(frozen=True)
class LoggedProgress:
    """Of the run that wrote last.

    Args:
        step, steps: optimizer steps done, and those of the whole run where the log says.
        loss: of the last report.
        tokens_per_second: of the last report.
        seconds_left: at the speed of the last reports, counted from now.
        stopped_by: the signal that ended it, after its last step.
        log: the file.
    """

    step: int
    steps: int | None
    loss: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    stopped_by: str | None
    log: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


def read_progress(folder: Path, since: float, now: float) -> LoggedProgress | None:
    """The progress of the log in `folder`, or of the newest below it, that was written to after `since` (seconds since
    1970); None where there is none yet."""
    log = folder / LOG if (folder / LOG).is_file() else _newest_log(folder)
    if log is None or log.stat().st_mtime < since:
        return None
    records = [record for record in _last_attempt(log) if record.get("time", 0) >= since]
    return progress_of(records, str(log), now) if records else None


def progress_of(records: Sequence[dict[str, Any]], log: str, now: float) -> LoggedProgress:
    """The progress that records of one start of a run tell; at least one."""
    reports = [record for record in records if record["type"] == "train"]
    steps = next((record["num_steps"] for record in reversed(records) if record.get("num_steps")), None)
    last = records[-1]
    report = reports[-1] if reports else {}
    return LoggedProgress(
        step=int(last["step"]),
        steps=steps,
        loss=report.get("loss"),
        tokens_per_second=report.get("tokens_per_second"),
        seconds_left=_time_left(reports[-_RECENT:], steps, now),
        stopped_by=last.get("signal") if last["type"] == "stop" else None,
        log=log,
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


def _newest_log(folder: Path) -> Path | None:
    logs = [Path(home) / LOG for home, _, files in os.walk(folder) if LOG in files]
    return max(logs, key=lambda path: path.stat().st_mtime, default=None)


def _last_attempt(path: Path) -> list[dict[str, Any]]:
    """The line that begins the last start of the run, and the last lines after it."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            begin = max(0, content.rfind(b'{"type": "start"'))
            end = content.rfind(b"\n") + 1  # the last line may be half written
            first = content.find(b"\n", begin) + 1
            tail = max(
                first, content.find(b"\n", max(first, end - _TAIL_BYTES)) + 1 if end - first > _TAIL_BYTES else 0
            )
            lines = content[begin:first] + content[tail:end]
    return [record for record in map(_record, lines.splitlines()) if record is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    """None for what a crash of the machine left."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and {"type", "step"} <= record.keys() else None


if __name__ == "__main__":
    progress = read_progress(Path(sys.argv[1]), float(sys.argv[2]), time.time())
    sys.stdout.write(progress.to_json() if progress is not None else "null")
