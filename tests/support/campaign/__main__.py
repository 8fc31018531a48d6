"""`python -m campaign`: damage, nonsense, limits and kills against every command, and a table of how each ended."""

import argparse
import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

# Before torch: one thread, so that numbers repeat and forks are safe.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from campaign import tally, world
from campaign.company import changing, exports, strangers, together
from campaign.damaging import damage, same
from campaign.inputs import inputs
from campaign.killing import kills
from campaign.limits import disk, memory, unmount_below
from campaign.pool import Failure, in_forks
from campaign.queueing import QUEUED, queue
from campaign.scenes import Prepared, Scene, prepare, scenes
from campaign.serving import SERVE, SERVE_RUN, service
from campaign.trial import LIMIT, Kind, Outcome, Trial, try_out
from campaign.verdicts import Verdict
from nystromformer.machine import machine_facts

KINDS: Mapping[str, tuple[Kind, int]] = {
    "damage": (damage, 20),
    "input": (inputs, 10),
    "kills": (kills, 1),
    "disk": (disk, 1),
    "memory": (memory, 1),
    "same": (same, 1),
    "service": (service, 2),
    "queue": (queue, 2),
    "exports": (exports, 1),
    "strangers": (strangers, 2),
    "changing": (changing, 1),
    "together": (together, 1),
}
"""Kinds of trials, and how many of each come in turn."""
LAUNCHED = Scene(
    "pretrain-by-torchrun", (world.LAUNCHED,), ("model", "dataset"), ("model/model",), cleared=("model/model",)
)
"""Two processes; for kills alone, as it takes seconds."""


_ROOM = 2 << 30
"""Bytes that have to be free where the trials' folders go."""
_LONGEST = 20 * LIMIT
"""Seconds after which a trial is ended."""


def main() -> None:
    """Parse the flags, try what they ask for, print the table; status 1 where a trial ended badly."""
    flags = _flags()
    # A script's background job ignores Ctrl-C, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if flags.sum:
        counts = tally.add(json.loads(path.read_text())["table"] for path in flags.sum)
        print(tally.table(counts))  # noqa: T201
        sys.exit(not tally.is_good(counts))
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="campaign-", dir=flags.scratch or _memory_disk()))
    scratch.chmod(0o755)  # a trial's user may be another one
    try:
        outcomes = list(_outcomes(flags, scratch, began))
    finally:
        unmount_below(scratch)
        shutil.rmtree(scratch, ignore_errors=True)
    bad = tally.failures(outcomes)
    for outcome in bad:
        print(_sentence(outcome, flags.seed))  # noqa: T201
    counts = tally.count(outcomes)
    print(f"\nseed {flags.seed}, {time.monotonic() - began:.0f} seconds\n{tally.table(counts)}")  # noqa: T201
    if flags.out:
        tally.write_record(flags.out, _facts(flags, time.monotonic() - began), outcomes)
    untried = set() if flags.only else set(flags.kinds) - {outcome.name.partition(":")[0] for outcome in outcomes}
    if untried:
        print(f"no trial of {', '.join(sorted(untried))}: the time was too short")  # noqa: T201
    sys.exit(bool(bad or untried))


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make campaign CAMPAIGN_FLAGS=…", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3, help="begin no trial after so many minutes (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="decides every trial (default 1)")
    kinds = f"some of {', '.join(KINDS)}, or at most so many of them, such as damage=2000,kills (default: all)"
    parser.add_argument("--kinds", "--trials", type=_counts, default=",".join(KINDS), help=kinds)
    parser.add_argument("--only", type=_one, help="one trial alone, such as damage:17")
    parser.add_argument("--scenes", default="", help="only scenes whose names begin with this")
    parser.add_argument("--workers", type=int, default=2, help="trials at a time (default 2)")
    parser.add_argument("--out", type=Path, help="write the record to this JSON file")
    parser.add_argument("--sum", type=Path, nargs="+", help="add these records up, and try nothing")
    scratch = "where the trials' folders go (default: /dev/shm with 2 GiB free, or /tmp)"
    parser.add_argument("--scratch", type=Path, help=scratch)
    parser.add_argument("--verbose", action="store_true", help="a line for every trial")
    return parser.parse_args()


def _counts(text: str) -> dict[str, int]:
    """The kinds that are named, and how many of each at most."""
    counts = {}
    for each in text.split(","):
        kind, _, count = each.partition("=")
        if kind not in KINDS or not re.fullmatch(r"\d*", count):
            raise argparse.ArgumentTypeError(f"{each}: expected some of {', '.join(KINDS)}, or such as damage=2000")
        counts[kind] = int(count or 10**9)
    return counts


def _one(text: str) -> tuple[str, int]:
    kind, _, number = text.partition(":")
    if kind not in KINDS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: expected such as damage:17")
    return kind, int(number)


def _memory_disk() -> str | None:
    """Where files are written fastest, if there is room for a campaign; else the folder for temporary files."""
    place = Path("/dev/shm")  # mkdtemp makes a folder of its own there
    roomy = place.is_dir() and os.access(place, os.W_OK) and shutil.disk_usage(place).free > _ROOM
    return str(place) if roomy else None


def _outcomes(flags: argparse.Namespace, scratch: Path, began: float) -> Iterator[Outcome]:
    prepared = _prepare(scratch, flags)
    print(f"{len(prepared)} scenes after {time.monotonic() - began:.0f} seconds", flush=True)  # noqa: T201
    (scratch / "trials").mkdir(mode=0o755)
    work, until = partial(_try_out, prepared, scratch / "trials"), time.monotonic() + 60 * flags.minutes
    for trial, outcome in in_forks(work, _trials(flags), flags.workers, until, _LONGEST):
        if isinstance(outcome, Failure):
            verdict = Verdict("unclear", outcome)
            outcome = Outcome(trial.kind, trial.name, "", "the campaign itself", verdict, trial.real, 0)
        if flags.verbose or flags.only or not outcome.verdict.good:
            print(_sentence(outcome, flags.seed), flush=True)  # noqa: T201
        yield outcome


def _try_out(prepared: Mapping[str, Prepared], folder: Path, trial: Trial) -> Outcome:
    usual = {name: each for name, each in prepared.items() if name not in (LAUNCHED.name, QUEUED.name)}
    chosen = prepared if trial.kind in ("kills", "queue") else usual
    return try_out(KINDS[trial.kind][0], trial, chosen, folder / f"{trial.kind}-{trial.number}")


def _prepare(scratch: Path, flags: argparse.Namespace) -> dict[str, Prepared]:
    """The world, and each scene's folder."""
    (scratch / "world").mkdir()
    world.make_world(scratch / "world")
    gc.collect()
    gc.freeze()  # what is here stays: forks share it
    prepared = {}
    work = partial(prepare, made=scratch / "world", folder=scratch / "scenes")
    for scene, each in in_forks(work, _chosen(flags), flags.workers):
        if isinstance(each, Failure):
            sys.exit(each)
        prepared[scene.name] = each
    return prepared


def _chosen(flags: argparse.Namespace) -> list[Scene]:
    chosen = [scene for scene in (*scenes(), SERVE, SERVE_RUN) if scene.name.startswith(tuple(flags.scenes.split(",")))]
    needed = {"service": SERVE, "queue": QUEUED}
    chosen += [scene for kind, scene in needed.items() if kind in flags.kinds and scene not in chosen]
    return [*chosen, LAUNCHED] if "kills" in flags.kinds and not flags.scenes else chosen


def _trials(flags: argparse.Namespace) -> Iterator[Trial]:
    """The one of `--only`, or trials of all kinds in turn, up to their numbers."""
    if flags.only:
        yield Trial(*flags.only, flags.seed)
        return
    begun = dict.fromkeys(flags.kinds, 0)
    while begun != flags.kinds:
        for kind, most in flags.kinds.items():
            for number in range(begun[kind], min(begun[kind] + KINDS[kind][1], most)):
                begun[kind] += 1
                yield Trial(kind, number, flags.seed)


def _sentence(outcome: Outcome, seed: int) -> str:
    verdict, real = outcome.verdict, ", a process of its own" if outcome.real else ""
    alone = f"--seed {seed} --only {outcome.name}"
    return f"{verdict.kind}: {outcome.scene}: {outcome.what}{real}: {verdict.why} ({alone}, {outcome.seconds:.1f} s)"


def _facts(flags: argparse.Namespace, seconds: float) -> dict[str, object]:
    machine = machine_facts()
    return {
        "command": f"make campaign CAMPAIGN_FLAGS={' '.join(sys.argv[1:])!r}",
        "seed": flags.seed,
        "commit": machine["commit"],
        "date": machine["date"],
        "machine": machine,
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    main()
