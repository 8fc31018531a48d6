"""Commands side by side, each with its log, for measurements of hours that are stopped and go on."""

import argparse
import csv
import io
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from nystromformer.files import write_text
from nystromformer.machine import machine_facts

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
"""Of the checkout, from where the commands run."""


STAGES = "stages.jsonl"


@dataclass(frozen=True)
class Job:
    """A command of this project and what its output is called."""

    name: str
    words: list[str]


def job(name: str, script: str, *parts: object) -> Job:
    """A Python script of the checkout with flags; strings of several words are cut at their spaces, and paths within
    the checkout are named from its top, so that results tell nothing of the machine.
    """
    words = [word for part in parts for word in (shlex.split(part) if isinstance(part, str) else [_named(part)])]
    return Job(name, [sys.executable, script, *words])


def _named(part: object) -> str:
    if isinstance(part, Path) and part.is_relative_to(ROOT):
        return str(part.relative_to(ROOT))
    return str(part)


def experiment_from(source: Path, checkpoint: int, folder: Path) -> Path:
    """An experiment folder that begins with a checkpoint of another: its config, weights and tokenizer; made once."""
    if not (folder / "config.json").exists():
        weights = f"cp-{checkpoint:04d}.model"
        shutil.copytree(source / "model" / "tokenizer", folder / "model" / "tokenizer", dirs_exist_ok=True)
        shutil.copyfile(source / "model" / weights, folder / "model" / weights)
        shutil.copyfile(source / "config.json", folder / "config.json")
    return folder


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file, whole or not at all."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, file.getvalue())


class Runner:
    """Runs jobs side by side, each with one thread and its log; SIGTERM and Ctrl-C reach all of them, and they leave
    checkpoints.

    Args:
        out: where the folder `logs` is.
        width: how many run at once.
    """

    def __init__(self, out: Path, width: int) -> None:
        self.logs = out / "logs"
        self._width = width
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Run them all, in this order.

        Raises:
            SystemExit: one failed; the others are done.
        """
        with ThreadPoolExecutor(self._width) as pool:
            failed = [job.name for job, status in zip(jobs, pool.map(self._run, jobs), strict=True) if status]
        if failed:
            sys.exit(f"{'stopped' if self._stopped.is_set() else 'failed'}: {', '.join(failed)}; see {self.logs}")

    def _run(self, job: Job) -> int:
        if self._stopped.is_set():
            return 1
        logger.info("%s: %s", job.name, shlex.join(["python", *job.words[1:]]))
        log = self.logs / f"{job.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(job.words, cwd=ROOT, env=one_thread, stdout=file, stderr=subprocess.STDOUT)
            self._running.add(process)
            status = process.wait()
            self._running.discard(process)
        if status and not self._stopped.is_set():
            logger.info("%s: status %d, see %s", job.name, status, log)
        return status

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped.set()
        for process in list(self._running):
            process.send_signal(signal.SIGTERM)


def run_stages(
    description: str,
    stages: Sequence[str],
    make: Callable[[Any, Path, Runner, bool], object],
    holds: str | None,
    out: Path,
) -> None:
    """The command line of a measurement in stages: the named ones, or all, in their order.

    Args:
        description: of the whole.
        stages: names of methods of what `make` gives for the data, the folder for everything, the runner, and whether
            it is a rehearsal.
        holds: what is in the folder that --data names; None: there is no such flag, and `make` is given None.
        out: the folder for everything where --out names none; `STAGES` in it tells when each began, and where.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"{', '.join(stages)}; default: all, in this order")
    if holds is not None:
        parser.add_argument("--data", type=Path, required=True, help=holds)
    parser.add_argument("--out", type=Path, default=out, help="default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once; default: %(default)s")
    parser.add_argument("--rehearse", action="store_true", help="a little of everything: what it reaches means nothing")
    flags = parser.parse_args()
    for stage in flags.stages:
        if stage not in stages:
            parser.error(f"{stage}: expected one of {', '.join(stages)}")
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    place = flags.out.resolve()
    data = None if holds is None else flags.data.resolve()
    made = make(data, place, Runner(place, flags.jobs), flags.rehearse)
    for stage in flags.stages or stages:
        place.mkdir(parents=True, exist_ok=True)
        with (place / STAGES).open("a") as file:
            file.write(json.dumps({"stage": stage, **machine_facts()}) + "\n")
        getattr(made, stage)()


def read_stages(folder: Path, *names: str) -> list[dict[str, Any]]:
    """When, where and by which commit each stage, or each of the named ones, was begun or resumed, in order."""
    path = folder / STAGES
    lines = path.read_text().splitlines() if path.is_file() else []
    return [stage for stage in map(json.loads, lines) if not names or stage["stage"] in names]
