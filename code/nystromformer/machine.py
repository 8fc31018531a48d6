"""What a measured figure must be read with: where, when and with which code it came about."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from nystromformer.command_line.runtime import OPENMP_WAITING


def machine_facts() -> dict[str, Any]:
    """What a figure must be read with: hardware, versions, date, commit."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit_of(Path(__file__).parent),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "openmp": " ".join(f"{name}={os.environ[name]}" for name in OPENMP_WAITING if name in os.environ) or "default",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores"


def commit_of(folder: Path) -> str:
    """The commit of the code that is measured; marked where the tree has changes, but for `results/`, which one
    measurement after another writes. A repository that the code is installed in, and not part of, says nothing.
    """
    try:
        _git(folder, "ls-files", "--error-unmatch", ".")
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results")
    except (OSError, subprocess.CalledProcessError):
        # Where the code was copied without its history, whoever copied it can say.
        return os.environ.get("NYSTROM_COMMIT", "unknown")
    return f"{commit}-dirty" if changes else commit


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
