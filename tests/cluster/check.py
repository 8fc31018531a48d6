"""`make cluster`: the scripts of slurm/ on a real Slurm of two nodes, which starts for it and ends with it."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "code")]
RECORD = ROOT / "results" / "cluster" / "checks.json"

from slurm_cluster import NAMESPACES, NEEDS, Cluster, ClusterError, can_start  # noqa: E402

from nystromformer.tables import Column, aligned  # noqa: E402


def main() -> int:
    """Refuse, or start the cluster in namespaces of its own and wait for what its checks say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    parser.add_argument("--only", metavar="WORD", default="", help="only the checks whose names hold this word")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record and arguments.only:
        parser.error("--record is of all checks: not with --only")
    if arguments.only:
        from slurm_checks import CHECKS  # with torch, which takes seconds

        if not any(arguments.only in name for name in CHECKS):
            parser.error(f"--only {arguments.only}: expected a word of one of: {'; '.join(CHECKS)}")
    if arguments.inside:
        return check(arguments.inside, arguments.only, arguments.record)
    if not can_start():
        sys.stderr.write(f"{NEEDS}\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="nystrom-cluster-"))
    # Jobs find this interpreter by their PATH, as their users' do.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "code"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, *sys.argv[1:], "--inside", str(folder)]
    # The kernel ends all of it with this process, even where that is killed.
    process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *NAMESPACES, *words], env=environment)
    try:
        folder.chmod(0o755)  # munge's demand
        return process.wait()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the cluster is ended\n")
        return 130
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def check(folder: Path, only: str, record: bool) -> int:
    """Run the checks in a cluster, print a table, and write it down where that is wanted; returns the exit status."""
    from slurm_checks import CHECKS, Checks

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process outside ends this one
    begin, rows = time.monotonic(), []
    with Cluster(folder, ROOT) as cluster:
        version = cluster.version()
        (folder / "checks").mkdir()
        checks = Checks(cluster, folder / "checks")
        for name, run in CHECKS.items():
            if only in name:
                rows.append(_row(name, partial(run, checks)))
    _show(rows)
    if record:
        _write(rows, time.monotonic() - begin, version)
    return 0 if rows and all(row["passed"] for row in rows) else 1


def _row(name: str, run: Callable[[], str]) -> dict[str, Any]:
    """A line of the table; a check that fails leaves the others to run."""
    begin = time.monotonic()
    try:
        passed, seen = True, run()
    except Exception as error:
        passed, seen = False, str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - begin, 1)
    _say(f"{name}: {'passed' if passed else 'FAILED'}, {seconds:.0f} s: {seen}")
    return {"check": name, "passed": passed, "seconds": seconds, "seen": seen}


def _show(rows: list[dict[str, Any]]) -> None:
    columns = [Column(is_text=True), Column(is_text=True), Column("seconds"), Column(is_text=True)]
    cells = [
        (row["check"], "passed" if row["passed"] else "FAILED", f"{row['seconds']:.0f}", row["seen"].splitlines()[0])
        for row in rows
    ]
    _say("\n" + "\n".join(aligned(columns, cells)))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _write(rows: list[dict[str, Any]], seconds: float, slurm: str) -> None:
    from nystromformer.machine import machine_facts

    facts = machine_facts()
    record = {
        "command": "make cluster CLUSTER_FLAGS=--record",
        "machine": {key: facts[key] for key in ("processor", "device", "torch", "python")} | {"slurm": slurm},
        "date": facts["date"],
        "commit": facts["commit"],
        "seconds": round(seconds),
        "checks": rows,
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
