"""What a run made, without what differs from one run to the next: times, speeds, memory, names of attempts."""

import contextlib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

PASSING = frozenset(
    {
        "time", "seconds", "date", "command", "machine", "memory_mib", "tokens_per_second", "tokens_per_second_total",
        "waiting", "waiting_for_data", "run_id", "device", "written", "set_by_flag", "elapsed",
    }
)  # fmt: skip
"""Keys of records whose values two runs of the same work need not share."""
ATTEMPTS = ("train", "validation")
"""Kinds of log lines that belong to a run's work; the others say how often it was started."""
SET_ASIDE = (".damaged", ".other-run", ".renamed", ".not-of-this-run")
_ASIDE_FOLDERS = ("tensorboard", "stages", "cache", "home")


def is_result(path: str) -> bool:
    """Whether a path is a run's result, and not a lock, a cache or what was set aside."""
    parts = Path(path).parts
    passing = parts[-1].startswith((".", "verified")) or parts[-1].endswith((".lock", ".tmp")) or parts[-1] == "lock"
    return not passing and not any(part in _ASIDE_FOLDERS or any(end in part for end in SET_ASIDE) for part in parts)


def results(folder: Path, outputs: Iterable[str]) -> dict[str, str]:
    """A digest of each result below the named files and folders."""
    digests = {}
    for output in outputs:
        top = folder / output
        paths = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
        for path in paths:
            name = str(path.relative_to(folder))
            if path.is_file() and is_result(name):
                digests[name] = digest(path)
    return digests


def digest(path: Path) -> str:
    """Equal for files that say the same; `unreadable` for one that says nothing."""
    try:
        return _digest(_content(path))
    except Exception:  # whatever a damaged file does to its reader
        return "unreadable"


def log_lines(path: Path) -> set[str]:
    """Digests of a log's lines about a run's work, whatever stands between them."""
    lines = set()
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):
            record = json.loads(line)
            if record["type"] in ATTEMPTS:
                lines.add(_digest(record))
    return lines


def _content(path: Path) -> Any:
    if path.suffix in (".cp", ".model"):
        return torch.load(path, map_location="cpu", weights_only=True)
    if path.name == "log.jsonl":
        records = (json.loads(line) for line in path.read_bytes().splitlines())
        return [record for record in records if record["type"] in ATTEMPTS]
    if path.suffix == ".json":
        return json.loads(path.read_bytes())
    return path.read_bytes()


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(_plain(value)).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A nest of plain data and tensors without the passing keys, keys in order and tensors as their bytes."""
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value, key=repr) if key not in PASSING}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, tuple(value.shape), hashlib.sha256(content).hexdigest()
    return value
