"""Docker's HEALTHCHECK: `python3 -m nystromformer.container.health`, well (status 0) while the log is being written.

A command that hangs, say in a collective operation whose other processes are gone, still runs as far as Docker can see;
only its log stands still. The log is whatever file the container's processes have as their stdout or stderr, so nothing
has to be told where it is. Standard library only: this runs once a minute beside the training.
"""

import contextlib
import math
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

LIMIT_VARIABLE = "NYSTROM_HEALTH_MINUTES"
DEFAULT_MINUTES = 30.0


def judge(environment: Mapping[str, str], proc: Path = Path("/proc")) -> tuple[bool, str]:
    """Whether the container whose processes `proc` shows is well, and why.

    It is not where every log is older than the limit that the environment sets, though process 1 has run for longer.
    """
    given = environment.get(LIMIT_VARIABLE, "") or str(DEFAULT_MINUTES)
    try:
        limit = float(given)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        return False, f"{LIMIT_VARIABLE}: expected a positive number of minutes, found {given!r}"
    logs = dict(_logs(proc))
    if not logs:
        return True, "no process writes to a file: there is no log to judge by"
    newest = max(logs, key=lambda name: logs[name])
    age = (time.time() - logs[newest]) / 60
    said = f"{newest} was last written {age:.0f} minutes ago"
    if age <= limit:
        return True, said
    # A log goes on in the file of an earlier start, whose last line may be as old as it likes.
    running = _minutes_running(proc)
    if running <= limit:
        return True, f"{said}, but the container has been running for only {running:.0f}"
    return False, f"{said}, more than {limit:g}"


def _logs(proc: Path) -> Iterator[tuple[str, float]]:
    """Name and time of writing of each file that a process has as its stdout or stderr."""
    for process in proc.iterdir():
        if not process.name.isdecimal() or process.name == str(os.getpid()):
            continue
        for descriptor in ("1", "2"):
            # Processes end while we look, and those of other users are not ours to look into.
            with contextlib.suppress(OSError):
                link = process / "fd" / descriptor
                # Through the link, because the name alone does not reach a file that is deleted or out of sight here.
                status = link.stat()
                if stat.S_ISREG(status.st_mode):
                    yield str(link.readlink()), status.st_mtime


def _minutes_running(proc: Path) -> float:
    """How long process 1 has been running. (The time of /proc/1 itself is that of whoever looked at it first.)"""
    # The command's name, the second field, is in parentheses and may hold any character; the start is field 22.
    fields = (proc / "1" / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    started = int(fields[22 - 3]) / os.sysconf("SC_CLK_TCK")
    uptime = float((proc / "uptime").read_text(encoding="utf-8").split()[0])
    return (uptime - started) / 60


if __name__ == "__main__":
    is_healthy, message = judge(os.environ)
    sys.stdout.write(message + "\n")
    sys.exit(0 if is_healthy else 1)
