"""How much memory a measurement may take."""

import math
from pathlib import Path

import torch


def free_memory(device: torch.device, root: Path = Path("/")) -> float:
    """Bytes that can be had without swapping: on the GPU, or on the machine and in its container; inf where unknown.

    Args:
        root: where /proc and /sys are.
    """
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return min(_of_machine(root / "proc/meminfo"), _of_container(root / "sys/fs/cgroup"))


def _of_machine(meminfo: Path) -> float:
    return 1024 * _field(meminfo, "MemAvailable:", math.inf)


def _of_container(cgroup: Path) -> float:
    """What its limit leaves; the cache of files, which the limit counts too, gives way."""
    limit = cgroup / "memory.max"
    text = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return math.inf if text == "max" else int(text) - _field(cgroup / "memory.stat", "anon", 0)


def _field(path: Path, name: str, otherwise: float) -> float:
    """The number behind a name at the beginning of a line."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return next((float(words[1]) for words in map(str.split, lines) if words[:1] == [name]), otherwise)
