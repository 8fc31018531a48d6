"""`python -m campaign`: damage, nonsense, limits and kills against every command, and a table of how each ended."""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

# Before torch: one thread, so that numbers repeat and forks are safe.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pandas

from campaign import world
from campaign.commands import end_with_parent
from campaign.scenes import Prepared, prepare, scenes
from campaign.trial import GOOD, KINDS, try_out, unmount_below

_CYCLE = (*["damage"] * 10, *["input"] * 5, *KINDS)
"""Kinds of trials, in turn."""


def main() -> None:
    """Parse the flags, try until the time is over, print the table; status 1 where a trial ended badly."""
    parser = argparse.ArgumentParser(prog="make campaign CAMPAIGN_FLAGS=…", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3, help="begin no trial after so many minutes (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="decides every trial (default 1)")
    parser.add_argument("--only", help="one trial alone, such as damage:17")
    parser.add_argument("--scenes", default="", help="only scenes whose names begin with this")
    parser.add_argument("--workers", type=int, default=2, help="trials at a time (default 2)")
    flags = parser.parse_args()
    memory = Path("/dev/shm")  # mkdtemp makes a folder of its own there
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30
    scratch = Path(tempfile.mkdtemp(prefix="campaign-", dir=memory if roomy else None))
    try:
        ended = _try_all(flags, scratch)
    finally:
        unmount_below(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
    table = pandas.DataFrame(ended, columns=["kind", "verdict"])
    print(pandas.crosstab(table["kind"], table["verdict"]))  # noqa: T201
    sys.exit(not table["verdict"].isin(GOOD).all())


def _try_all(flags: argparse.Namespace, scratch: Path) -> list[tuple[str, str]]:
    """Kinds of trials and their verdicts."""
    made = scratch / "world"
    made.mkdir()
    world.make_world(made)
    gc.collect()
    gc.freeze()  # what is here stays: forks share it
    chosen = [scene for scene in scenes() if scene.name.startswith(flags.scenes)]
    with ProcessPoolExecutor(flags.workers, get_context("fork"), end_with_parent) as pool:
        each = pool.map(partial(prepare, made=made, folder=scratch / "scenes"), chosen)
        prepared = {scene.name: one for scene, one in zip(chosen, each, strict=True)}
        print(f"{len(prepared)} scenes", flush=True)  # noqa: T201
        work = partial(_try_some, flags, prepared, scratch, time.monotonic() + 60 * flags.minutes)
        return [outcome for outcomes in pool.map(work, range(flags.workers)) for outcome in outcomes]


def _try_some(
    flags: argparse.Namespace, prepared: Mapping[str, Prepared], scratch: Path, until: float, worker: int
) -> list[tuple[str, str]]:
    """Every so many-th trial, until the time is over."""
    ended, number = [], worker
    while time.monotonic() < until and not (flags.only and (ended or worker)):
        name = flags.only or f"{_CYCLE[number % len(_CYCLE)]}:{number}"
        kind = name.partition(":")[0]
        what, verdict = try_out(kind, f"{flags.seed} {name}", prepared, scratch / f"trial-{worker}")
        if flags.only or verdict.kind not in GOOD:
            print(f"{verdict.kind}: {what}: {verdict.why} (--seed {flags.seed} --only {name})", flush=True)  # noqa: T201
        ended.append((kind, verdict.kind))
        number += flags.workers
    return ended


if __name__ == "__main__":
    main()
