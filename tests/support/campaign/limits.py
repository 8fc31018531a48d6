"""Trials of limits: a disk that is full, and memory that is not there."""

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from campaign import trees
from campaign.commands import Hook
from campaign.scenes import Prepared
from campaign.trial import Outcome, Sandbox, Trial, finish
from campaign.verdicts import Disturbance, Verdict

_PAGE = 4096


def disk(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """A disk with room for a part of what a run writes; then there is room, and it goes on."""
    began, draw = time.monotonic(), trial.draw
    chosen = prepared[draw.choice(sorted(name for name in prepared if not name.endswith("-finished")))]
    holder = folder.with_name(f"{folder.name}-disk")
    holder.mkdir()
    with _disk(holder) as resize:
        sandbox = Sandbox(chosen, holder / folder.name, folder)
        size, hook = _room(draw, sandbox, resize)
        disturbance = Disturbance(f"a disk with {size // 1024} KiB left", names=_paths(sandbox))
        before = sandbox.look()
        ended = sandbox.run(hook=hook)
        resize(1 << 28)
        verdict = sandbox.judge(disturbance, ended, before)
        if verdict.kind == "clear error" or (verdict.kind == "lost" and sandbox.is_unfinished(ended)):
            again = sandbox.recovered()
            verdict = Verdict("clear error", verdict.why) if again.good else again
        return finish(trial, sandbox, disturbance, verdict, began, real=False)


def memory(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """A limit of memory, as `ulimit -v` sets it; then there is none, and the run goes on."""
    began, draw = time.monotonic(), trial.draw
    sandbox = Sandbox(prepared[draw.choice(sorted(prepared))], folder)
    room = int(10 ** draw.uniform(6, 8.3))
    disturbance = Disturbance(f"{room / 1e6:.1f} MB of memory left")
    try:
        before = sandbox.look()
        ended = sandbox.run(hook=lambda: _limit(room))
        verdict = sandbox.judge(disturbance, ended, before)
        if verdict.kind == "clear error" or (verdict.kind == "lost" and sandbox.is_unfinished(ended)):
            again = sandbox.recovered()
            verdict = Verdict("clear error", verdict.why) if again.good else again
        return finish(trial, sandbox, disturbance, verdict, began, real=False)
    finally:
        sandbox.close()


def _paths(sandbox: Sandbox) -> tuple[str, ...]:
    """Beginnings of paths below the sandbox, as a command names them."""
    scene = sandbox.prepared.scene
    tops = sorted({Path(each).parts[0] for each in (*scene.outputs, *scene.needs, *filter(None, [scene.parts]))})
    return (f"{sandbox.folder}/", *(f"{top}{end}" for top in tops for end in "/:"))


def _limit(room: int) -> None:
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + room, taken + room))


def _room(draw: random.Random, sandbox: Sandbox, resize: "Resize") -> tuple[int, Hook | None]:
    """Leave room for a random part of what the run writes."""
    grown = _size(sandbox.prepared.folder.with_name("after0")) - _size(sandbox.prepared.folder)
    room = draw.randrange(_PAGE, max(2 * _PAGE, int(1.2 * grown)))
    if resize.mounted:
        status = os.statvfs(sandbox.folder)
        resize((status.f_blocks - status.f_bfree) * status.f_frsize + room)
        return room, None
    return room, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


class Resize:
    """Gives a tmpfs another size."""

    def __init__(self, folder: Path, mounted: bool) -> None:
        self._folder, self.mounted = folder, mounted

    def __call__(self, size: int) -> None:
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,size={size}", self._folder], check=True)


@contextmanager
def _disk(folder: Path) -> Iterator[Resize]:
    """A small disk; for who may not mount one, a folder whose files may grow so far only."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "campaign", str(folder)]
    # In many a container root may not.
    mounted = os.getuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield Resize(folder, mounted)
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)
        with contextlib.suppress(OSError):
            trees.remove(folder)


def unmount_below(folder: Path) -> None:
    """Unmount what trials that were killed left mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)


def _size(folder: Path) -> int:
    return sum(-(-path.stat().st_size // _PAGE) * _PAGE for path in folder.rglob("*") if path.is_file())
