"""Commands side by side, each with its log, for measurements of hours that are stopped and go on."""

import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
"""Of the checkout, from where the commands run."""


@dataclass(frozen=True)
class Job:
    """A command of this project and what its output is called."""

    name: str
    words: list[str]


def job(name: str, script: str, *parts: object) -> Job:
    """A Python script of the checkout with flags; strings of several words are cut at their spaces."""
    words = [word for part in parts for word in (shlex.split(part) if isinstance(part, str) else [str(part)])]
    return Job(name, [sys.executable, script, *words])


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
