"""What the machine has, and whether something can fit into it at all: asked before anything is allocated.

Memory is counted in bytes.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nystromformer.errors import UserError

if TYPE_CHECKING:
    import torch

PROCESSES_PER_CORE = 16
"""More processes than so many for each core only take memory."""


def usable_cores() -> int:
    """Cores that this process may use, which a scheduler may have set below the machine's."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def most_processes() -> int:
    """The most processes, or threads, that a flag may ask for."""
    return PROCESSES_PER_CORE * usable_cores()


def check_processes(flag: str, count: int) -> None:
    """Check a flag that says how many processes to start.

    Raises:
        UserError: far more than the machine has cores.
    """
    if count > most_processes():
        raise UserError(
            f"{flag} {count}: expected at most {most_processes()}, {PROCESSES_PER_CORE} for each of the "
            f"{usable_cores()} cores available"
        )


def free_memory(device: torch.device | None = None, root: Path = Path("/"), swap: bool = False) -> float:
    """Bytes that can be had: on a GPU; or on the machine, in its container and by `ulimit -v`; inf where unknown.

    Args:
        device: None: the machine.
        root: where /proc and /sys are.
        swap: count what can be had by swapping, too.
    """
    if device is not None and device.type == "cuda":
        import torch

        return float(torch.cuda.mem_get_info(device)[0])
    more = 1024 * _field(root / "proc/meminfo", "SwapFree:", 0) if swap else 0
    machine = 1024 * _field(root / "proc/meminfo", "MemAvailable:", math.inf)
    return min(more + min(machine, _of_container(root / "sys/fs/cgroup")), _of_process(root / "proc/self/statm"))


def check_room(what: str, parts: Mapping[str, float], free: float, place: str, advice: str) -> None:
    """Refuse what surely does not fit.

    Args:
        what: it is, for the message.
        parts: the least bytes that each part of it takes, all at one time.
        free: bytes that there are.
        place: where they are, such as "on this machine".
        advice: what to do about it.

    Raises:
        UserError: says how much each part takes, and how much there is.
    """
    total = sum(parts.values())
    if total <= free:
        return
    shown = ", ".join(f"{name} {gibibytes(size)}" for name, size in parts.items() if size >= total / 1000)
    raise UserError(
        f"{what} takes at least {gibibytes(total)} of memory ({shown}), and {gibibytes(free)} are available {place}: "
        f"{advice}"
    )


def gibibytes(size: float) -> str:
    """Such as `1,234.5 GiB`."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:,.1f} MiB"


def _of_container(cgroup: Path) -> float:
    """What its limit leaves; the cache of files, which the limit counts too, gives way."""
    limit = cgroup / "memory.max"
    text = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return math.inf if text == "max" else int(text) - _field(cgroup / "memory.stat", "anon", 0)


def _of_process(statm: Path) -> float:
    """What `ulimit -v` leaves of this process' addresses."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    used = int(statm.read_text(encoding="utf-8").split()[0]) * resource.getpagesize() if statm.is_file() else 0
    return max(0, limit - used)


def _field(path: Path, name: str, otherwise: float) -> float:
    """The number behind a name at the beginning of a line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((float(words[1]) for words in map(str.split, lines) if words[:1] == [name]), otherwise)
