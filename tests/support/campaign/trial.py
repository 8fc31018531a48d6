"""One trial: a scene's folder copied, disturbed, run and judged; all that is random in it follows from its name."""

import hashlib
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import trees
from campaign.commands import Command, Ended, Hook, run
from campaign.results import results
from campaign.scenes import Prepared
from campaign.verdicts import Disturbance, Verdict, judge

LIMIT = 30
"""Seconds after which a command of the small world hangs: the slowest takes two."""
REAL_EVERY = 13
"""One of so many trials of damage and input is a real process, which imports everything anew."""


@dataclass(frozen=True)
class Outcome:
    """What became of a trial.

    count: kills, or 1.
    """

    row: str
    name: str
    scene: str
    what: str
    verdict: Verdict
    real: bool
    seconds: float
    count: int = 1


@dataclass(frozen=True)
class Trial:
    """`KIND:NUMBER` of a seed."""

    kind: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.number}"

    @property
    def draw(self) -> random.Random:
        """The trial's own random numbers."""
        return random.Random(f"{self.seed} {self.name}")

    @property
    def real(self) -> bool:
        return self.number % REAL_EVERY == 0


class Sandbox:
    """A copy of a scene's folder, to be disturbed; what its commands print goes beside it, or to `output`."""

    def __init__(self, prepared: Prepared, folder: Path, output: Path | None = None) -> None:
        self.prepared = prepared
        self.folder = folder
        self.output = output
        trees.copy(prepared.folder, folder)
        self._saved = newest_steps(folder)

    def look(self) -> trees.Tree:
        """What lies in the folder now; the checkpoints that are whole are remembered, and have to stay."""
        self._saved = newest_steps(self.folder)
        return trees.listing(self.folder)

    def fell(self) -> bool:
        """Whether steps that were saved when it was looked at are not any more."""
        now = newest_steps(self.folder)
        return any(now.get(run, _NOTHING) < step for run, step in self._saved.items())

    def run(self, *commands: Command, limit: float = LIMIT, real: bool = False, hook: Hook | None = None) -> Ended:
        """Run commands, or the scene's, one after the other until one does not end well."""
        limit *= 4 if real else 1  # on a busy machine, imports alone take long
        ended = Ended(0, "", "", 0)
        for command in commands or self.prepared.scene.commands:
            one = run(command, self.folder, limit, real, hook, self.output)
            ended = Ended(one.status, ended.stdout + one.stdout, ended.stderr + one.stderr, ended.seconds + one.seconds)
            if one.status != 0:
                break
        return ended

    def judge(
        self, disturbance: Disturbance, ended: Ended, before: trees.Tree, strangers: Collection[str] = ()
    ) -> Verdict:
        """The verdict on what the folder now holds; files of `strangers` are no results."""
        found = results(self.folder, self.prepared.scene.outputs) if ended.status == 0 else {}
        got = {path: digest for path, digest in found.items() if path not in strangers}
        after, fell = trees.listing(self.folder), ended.status != 0 and self.fell()
        return judge(disturbance, ended, before, after, got, self.prepared.undisturbed, fell)

    def recover(self, verdict: Verdict, ended: Ended, take_back: Callable[[], object] = lambda: None) -> Verdict:
        """The verdict on an error, once the same commands have run with the disturbance taken back.

        Corpora and rows that the error declared unfinished are not lost where the same commands finish them.
        """
        unfinished = verdict.kind == "lost" and ended.status == 2 and self.prepared.is_preprocessing
        if verdict.kind != "clear error" and not unfinished:
            return verdict
        take_back()
        again = self.judge(Disturbance(""), self.run(), self.prepared.before)
        if again.kind in ("identical", "fallback"):
            return Verdict("clear error", verdict.why)
        return Verdict("lost", f"once the damage is taken back: {again.kind}: {again.why}")

    def restore(self, path: str) -> None:
        """Put a file back as it was, with its time."""
        target, source = self.folder / path, self.prepared.folder / path
        trees.remove(target)
        shutil.copy2(source, target)
        if target.parts[-2:] == ("stages", "run.json"):
            trees.move_along(target, self.prepared.folder, self.folder)


class Attempt:
    """A trial at work: its random numbers, the scenes, and a folder of its own for all that it needs."""

    def __init__(self, trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> None:
        self.trial, self.prepared, self.folder = trial, prepared, folder
        self.draw, self.real = trial.draw, trial.real
        self._began = time.monotonic()

    def choose(self, fits: Callable[[Prepared], object] = lambda scene: True) -> Prepared:
        """One of the scenes that fit, drawn at random."""
        return self.prepared[self.draw.choice([name for name, each in sorted(self.prepared.items()) if fits(each)])]

    def open(self, prepared: Prepared, within: str = ".") -> Sandbox:
        """A new sandbox, in place of an earlier one."""
        folder = self.folder / within / "sandbox"
        trees.remove(folder)
        return Sandbox(prepared, folder, self.folder / "output")

    def outcome(self, sandbox: Sandbox, what: str, verdict: Verdict, **changes: Any) -> Outcome:
        """The outcome of the trial, once it is judged."""
        scene, seconds = sandbox.prepared.scene.name, round(time.monotonic() - self._began, 3)
        fields: dict[str, Any] = {"row": self.trial.kind, "real": self.real}
        return Outcome(
            name=self.trial.name, scene=scene, what=what, verdict=verdict, seconds=seconds, **fields | changes
        )


Kind = Callable[[Attempt], Outcome]
"""What disturbs a run, and what may follow."""


def try_out(kind: Kind, trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """Try a trial in a folder, which is not there yet and is removed at the end."""
    folder.mkdir()
    try:
        return kind(Attempt(trial, prepared, folder))
    finally:
        trees.remove(folder)


Step = tuple[int, bool, int]
"""Where a checkpoint was written: the epoch, whether at its end, the step."""
_NOTHING: Step = (-1, False, 0)
_OVER: Step = (10**9, True, 0)
_TRAILER_BYTES = 73


def newest_steps(folder: Path) -> dict[str, Step]:
    """Of each folder with checkpoints that are whole, the newest one's step."""
    newest: dict[str, Step] = {}
    for path in folder.rglob("cp-*.cp"):
        match = re.fullmatch(r"cp-(\d+)(?:-step-(\d+))?\.cp", path.name)
        if match and _is_whole(path):
            step = (int(match[1]), match[2] is None, int(match[2] or 0))
            run = str(path.parent.relative_to(folder))
            newest[run] = max(step, newest.get(run, _NOTHING))
    # A fine-tuning that is over has its result, and no checkpoint any more.
    over = [str(path.parent.relative_to(folder)) for path in folder.rglob("result.json") if path.is_file()]
    return newest | dict.fromkeys(over, _OVER)


def _is_whole(path: Path) -> bool:
    """Whether a checkpoint ends with the checksum of what is before it, told without the project's own check."""
    if not path.is_file():
        return False
    content = path.read_bytes()
    end = len(content) - _TRAILER_BYTES
    return content[end:] == f"\nsha256 {hashlib.sha256(content[:end]).hexdigest()}\n".encode()
