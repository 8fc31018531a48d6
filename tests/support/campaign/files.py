"""What lies in a folder, without what differs from one run to the next: times, speeds, memory, names of attempts."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from nystromformer.files.checked_json import read_checked, write_checked

Tree = dict[str, str]
"""Paths of files below a folder, and a digest of each, equal for files that say the same."""
_PASSING_KEYS = frozenset(
    {
        "time", "seconds", "date", "command", "machine", "memory_mib", "tokens_per_second", "tokens_per_second_total",
        "waiting", "waiting_for_data", "run_id", "device", "written", "set_by_flag", "elapsed",
    }
)  # fmt: skip
"""Keys of records whose values two runs of the same work need not share."""
_PASSING_NAME = re.compile(
    r"(^|/)(\.|verified|lock$|(tensorboard|stages|cache|home)/)|\.(lock|tmp)$|\.(damaged|other-run|renamed|not-of-this)"
)
"""Locks, caches and what was set aside: no results."""
_OVER = 10**9


def look(folder: Path) -> Tree:
    """Every file below a folder that is a result or an input."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not _PASSING_NAME.search(name):
            tree[name] = _digest_file(path)
    return tree


def newest_steps(tree: Tree, but: str | None = None) -> dict[str, tuple[int, int]]:
    """Of each folder with checkpoints the newest one's epoch and step, one of them left out.

    A fine-tuning that is over has its result, and no checkpoint any more.
    """
    newest: dict[str, tuple[int, int]] = {}
    for path in tree:
        match = re.fullmatch(r"(.*)/(?:cp-(\d+)(?:-step-(\d+))?\.cp|result\.json)", path)
        if match and path != but:
            step = (int(match[2] or _OVER), int(match[3] or _OVER))
            newest[match[1]] = max(step, newest.get(match[1], (-1, 0)))
    return newest


def copy(source: Path, target: Path) -> None:
    """Copy a folder with its files' times. What preprocessing notes of where its corpus lies is moved along."""
    shutil.copytree(source, target)
    for path in target.glob("**/stages/run.json"):
        stat = path.stat()
        write_checked(path, json.loads(json.dumps(read_checked(path)).replace(f"{source}/", f"{target}/")))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _digest_file(path: Path) -> str:
    try:
        content = _read(path)
    except Exception:  # whatever a damaged file does to its reader
        content = path.read_bytes()
    return hashlib.sha256(repr(_strip(content)).encode()).hexdigest()


def _read(path: Path) -> Any:
    if path.suffix in (".cp", ".model"):
        return torch.load(path, map_location="cpu", weights_only=True)
    if path.name == "log.jsonl":
        # The other lines say how often the run was started.
        records = (json.loads(line) for line in path.read_bytes().splitlines())
        return [record for record in records if record["type"] in ("train", "validation")]
    return json.loads(path.read_bytes()) if path.suffix == ".json" else path.read_bytes()


def _strip(value: Any) -> Any:
    """A nest of plain data and tensors without the passing keys, keys in order and tensors as their bytes."""
    if isinstance(value, dict):
        return {key: _strip(value[key]) for key in sorted(value, key=repr) if key not in _PASSING_KEYS}
    if isinstance(value, list | tuple):
        return [_strip(item) for item in value]
    if isinstance(value, torch.Tensor):
        content = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return value.dtype, tuple(value.shape), hashlib.sha256(content).hexdigest()
    return value
