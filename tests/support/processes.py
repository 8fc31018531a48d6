"""Processes that a test started, as /proc shows them."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def wait_for(condition: Callable[[], object], seconds: float = 300) -> None:
    """Look until it holds; what does not come true fails the test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def processes_of(session: int) -> list[int]:
    """Living processes of a session."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # after the name in parentheses: state, parent, group, session
            state, _, _, number = stat.read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                processes.append(int(stat.parent.name))
    return processes
