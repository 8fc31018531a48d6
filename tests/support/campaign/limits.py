"""Trials of limits: a disk that is full, and memory that is not there."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.commands import set_memory_limit
from campaign.trial import Attempt, Outcome, Sandbox
from campaign.verdicts import Disturbance

_PAGE = 4096


def disk(attempt: Attempt) -> Outcome:
    """A disk with room for a part of what a run writes; then there is room, and it goes on."""
    chosen = attempt.choose(lambda scene: not scene.scene.name.endswith("-finished"))
    grown = _size(chosen.done) - _size(chosen.folder)
    room = attempt.draw.randrange(_PAGE, max(2 * _PAGE, int(1.2 * grown)))
    with _disk(attempt.folder / "disk") as resize:
        sandbox = attempt.open(chosen, within="disk")
        disturbance = Disturbance(f"a disk with {room // 1024} KiB left", names=_paths(sandbox))
        before = sandbox.look()
        if resize is None:
            ended = sandbox.run(hook=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
        else:
            status = os.statvfs(sandbox.folder)
            resize((status.f_blocks - status.f_bfree) * status.f_frsize + room)
            ended = sandbox.run()
            resize(1 << 28)
        verdict = sandbox.recover(sandbox.judge(disturbance, ended, before), ended)
        return attempt.outcome(sandbox, disturbance.what, verdict, real=False)


def memory(attempt: Attempt) -> Outcome:
    """A limit of memory, as `ulimit -v` sets it; then there is none, and the run goes on."""
    sandbox = attempt.open(attempt.choose())
    room = int(10 ** attempt.draw.uniform(6, 8.3))
    disturbance = Disturbance(f"{room / 1e6:.1f} MB of memory left")
    before = sandbox.look()
    ended = sandbox.run(hook=lambda: set_memory_limit(room))
    verdict = sandbox.recover(sandbox.judge(disturbance, ended, before), ended)
    return attempt.outcome(sandbox, disturbance.what, verdict, real=False)


def _paths(sandbox: Sandbox) -> tuple[str, ...]:
    """Beginnings of paths below the sandbox, as a command names them."""
    scene = sandbox.prepared.scene
    tops = sorted({Path(each).parts[0] for each in (*scene.outputs, *scene.needs, *filter(None, [scene.parts]))})
    return (f"{sandbox.folder}/", *(f"{top}{end}" for top in tops for end in "/:"))


@contextmanager
def _disk(folder: Path) -> Iterator[Callable[[int], object] | None]:
    """A small disk. Yields what gives it another size in bytes, or None where none can be mounted (containers)."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "campaign", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def unmount_below(folder: Path) -> None:
    """Unmount what trials that were killed left mounted."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)


def _size(folder: Path) -> int:
    return sum(-(-path.stat().st_size // _PAGE) * _PAGE for path in folder.rglob("*") if path.is_file())
