"""Trials side by side, each in a fork of this process, which has imported what the commands import."""

import contextlib
import importlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from campaign.commands import Hook, end_with_parent
from campaign.scenes import Prepared, Scene, prepare
from campaign.trial import LIMIT, Outcome, Trial
from campaign.verdicts import Verdict

Work = Callable[[Trial, Path], Outcome]
"""Tries a trial in a folder that is not there yet."""
_LONGEST = 20 * LIMIT


def run_trials(trials: Iterable[Trial], work: Work, workers: int, scratch: Path, until: float) -> Iterator[Outcome]:
    """Outcomes as they come, of as many trials as begin before `until` (of the monotonic clock).

    Args:
        workers: trials at a time.
        scratch: a folder for theirs.
    """
    waiting, running = iter(trials), dict[int, tuple[Trial, Path, float]]()
    more = True
    try:
        while more or running:
            while more and len(running) < workers:
                trial = next(waiting, None) if time.monotonic() < until else None
                if trial is None:
                    more = False
                    break
                target = scratch / f"{trial.kind}-{trial.number}"
                running[_begin(trial, work, target)] = trial, target, time.monotonic()
            if running:
                yield from _ended(running)
    finally:
        for pid in running:
            _kill(pid)
            os.waitpid(pid, 0)


def _begin(trial: Trial, work: Work, target: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        end_with_parent()
        outcome = work(trial, target)
        target.with_suffix(".outcome").write_bytes(pickle.dumps(outcome))
    except BaseException:
        target.with_suffix(".failure").write_text(traceback.format_exc())
    finally:
        os._exit(0)


def _ended(running: dict[int, tuple[Trial, Path, float]]) -> Iterator[Outcome]:
    """What became of the trials that are over now, after a moment's wait."""
    time.sleep(0.005)
    for pid, (trial, target, began) in list(running.items()):
        if time.monotonic() - began > _LONGEST:
            _kill(pid)
        if os.waitpid(pid, os.WNOHANG)[0]:
            del running[pid]
            yield _outcome(trial, target)


def _kill(pid: int) -> None:
    """Kill a trial; its commands, in sessions of their own, end with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _outcome(trial: Trial, target: Path) -> Outcome:
    made, failed = target.with_suffix(".outcome"), target.with_suffix(".failure")
    if made.exists():
        outcome = pickle.loads(made.read_bytes())  # noqa: S301  # this program wrote it
        made.unlink()
        assert isinstance(outcome, Outcome)
        return outcome
    why = failed.read_text() if failed.exists() else "it was ended after its time"
    failed.unlink(missing_ok=True)
    return Outcome(trial.kind, trial.name, "", "the campaign itself", Verdict("unclear", why), trial.real, 0)


def prepare_all(scenes: Sequence[Scene], made: Path, folder: Path, workers: int) -> list[Prepared]:
    """Prepare scenes side by side.

    Raises:
        SystemExit: one of them cannot be prepared; it was said which.
    """
    folder.mkdir()
    children = {}
    for number in range(workers):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for scene in scenes[number::workers]:
                    kept = folder / f"{scene.name}.pickle"
                    kept.write_bytes(pickle.dumps(prepare(scene, made, folder)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        children[pid] = number
    statuses = [os.waitpid(pid, 0)[1] for pid in children]
    if any(statuses):
        raise SystemExit(1)
    return [pickle.loads((folder / f"{each.name}.pickle").read_bytes()) for each in scenes]  # noqa: S301  # its own


def notes_modules(path: Path) -> Hook:
    """Writes down, at a command's end, which modules it has imported."""

    def hook() -> None:
        import atexit

        atexit.register(lambda: path.write_text(json.dumps(list(sys.modules))))

    return hook


def import_noted(path: Path) -> None:
    """Import what a command has imported, so that no fork of this process has to."""
    for name in json.loads(path.read_text()):
        if name not in sys.modules and not name.startswith("__"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
