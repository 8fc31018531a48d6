"""One trial: a scene's folder copied, disturbed, run and judged; all that is random in it follows from its name."""

import hashlib
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from campaign import trees
from campaign.commands import Command, Ended, Hook, run
from campaign.results import results
from campaign.scenes import Prepared
from campaign.verdicts import Disturbance, Undisturbed, Verdict, judge

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

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


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
    """A copy of a scene's folder, to be disturbed; what its commands print goes beside it, or beside `output`."""

    def __init__(self, prepared: Prepared, folder: Path, output: Path | None = None) -> None:
        self.prepared = prepared
        self.folder = folder
        self._output = output or folder
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

    def run(self, limit: float = LIMIT, real: bool = False, hook: Hook | None = None, **changes: Any) -> Ended:
        """Run the scene's commands one after the other until one does not end well.

        Args:
            changes: of the first command.
        """
        commands = list(self.prepared.scene.commands)
        commands[0] = replace(commands[0], **changes)
        return self.run_all(commands, limit, real, hook)

    def run_all(
        self, commands: Sequence[Command], limit: float = LIMIT, real: bool = False, hook: Hook | None = None
    ) -> Ended:
        limit *= 4 if real else 1  # on a busy machine, imports alone take long
        ended = Ended(0, "", "", 0)
        for command in commands:
            one = run(command, self.folder, limit, real, hook, self._output)
            ended = Ended(one.status, ended.stdout + one.stdout, ended.stderr + one.stderr, ended.seconds + one.seconds)
            if one.status != 0:
                break
        return ended

    def judge(self, disturbance: Disturbance, ended: Ended, before: trees.Tree) -> Verdict:
        """The verdict on what the folder now holds."""
        outputs = self.prepared.scene.outputs
        got = results(self.folder, outputs) if ended.status == 0 else {}
        there = trees.listing(self.folder)
        return judge(disturbance, ended, before, there, got, self.reference, ended.status != 0 and self.fell())

    def is_unfinished(self, ended: Ended) -> bool:
        """Whether corpora or rows were declared unfinished by an error; the same command has to finish them again."""
        return ended.status == 2 and self.is_preprocessing

    @property
    def is_preprocessing(self) -> bool:
        """Whether the results can be made from what the folder holds beside them."""
        return self.prepared.scene.name.startswith(("unify", "rows"))

    @property
    def reference(self) -> Undisturbed:
        return Undisturbed(self.prepared.before, self.prepared.after, self.prepared.expected)

    def recovered(self) -> Verdict:
        """The verdict on the same commands once nothing disturbs them any more."""
        ended = self.run()
        verdict = self.judge(Disturbance(""), ended, self.prepared.before)
        if verdict.kind in ("identical", "fallback"):
            return verdict
        return Verdict("lost", f"once the damage is taken back: {verdict.kind}: {verdict.why}")

    def close(self) -> None:
        trees.remove(self.folder)
        for name in ("stdout", "stderr"):
            self._output.with_name(f"{self._output.name}.{name}").unlink(missing_ok=True)


Kind = Callable[[Trial, Mapping[str, Prepared], Path], Outcome]
"""Tries a trial in a folder of its own, which is not there yet."""


def finish(
    trial: Trial, sandbox: Sandbox, disturbance: Disturbance, verdict: Verdict, began: float, **more: Any
) -> Outcome:
    """The outcome of a trial that is judged."""
    seconds = time.monotonic() - began
    fields = {"row": trial.kind, "real": trial.real, **more}
    return Outcome(
        name=trial.name,
        scene=sandbox.prepared.scene.name,
        what=disturbance.what,
        verdict=verdict,
        seconds=round(seconds, 3),
        **fields,
    )


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


def restore(sandbox: Sandbox, path: str) -> None:
    """Put a file back as it was, with its time."""
    target, source = sandbox.folder / path, sandbox.prepared.folder / path
    if target.is_symlink() or target.exists():
        trees.remove(target)
    shutil.copy2(source, target)
    if target.name == "run.json":
        trees.move_along(target, sandbox.prepared.folder, sandbox.folder)
