"""One trial: a scene's folder copied, disturbed, run and judged; all that is random in it follows from its name.

A run ends well with the results of an undisturbed one (`identical`), or with status 2 and one message that names the
file (`clear error`), after which the same command gives the undisturbed results once the damage is taken back. Where no
checksum can exist, because the content is the user's own to choose (config.json, raw text, labelled examples), another
valid content is another wish, and a run that does as it says is `legitimate`. So is a damaged result that a finished
run did not look at and left as it was. Everything else ends badly.
"""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from campaign.commands import LIMIT, Ended, Hook, Running, run, set_memory_limit
from campaign.damages import damage_file, fails_to_open, fails_to_write
from campaign.files import Tree, copy, look, newest_steps, remove
from campaign.inputs import draw_input, run_input
from campaign.scenes import SEALED, Prepared

GOOD = ("identical", "clear error", "legitimate")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^thread '.*' panicked|terminate called", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(
    r"^(?:memory allocation of \d+ bytes failed|Fatal glibc error: .*out of memory|.*cannot allocate memory for).*",
    re.MULTILINE,
)
"""The line in which the Rust of the tokenizers or glibc says it; both may, one after the other."""


class Verdict(NamedTuple):
    """One of `GOOD`, or silent, traceback, hang, lost or unclear; and a sentence on why."""

    kind: str
    why: str = ""


class Sandbox:
    """A copy of a scene's folder, to be disturbed."""

    def __init__(self, prepared: Prepared, folder: Path) -> None:
        self.prepared, self.scene, self.folder = prepared, prepared.scene, folder
        copy(prepared.folder, folder)

    def run(self, hook: Hook | None = None, limit: float = LIMIT) -> Ended:
        """Run the scene's commands one after the other, until one does not end well."""
        ended = Ended(0, "", "")
        for command in self.scene.commands:
            one = run(command, self.folder, hook, limit)
            ended = Ended(one.status, ended.stdout + one.stdout, ended.stderr + one.stderr, one.seconds)
            if one.status != 0:
                break
        return ended

    def judge(self, ended: Ended, before: Tree, path: str | None = None, names: tuple[str, ...] = ()) -> Verdict:
        """The verdict on a run.

        Args:
            before: the folder when the run began, with the damage in it.
            path: the damaged file; None: none is.
            names: words of which an error has to say one.
        """
        verdict, after = judge_end(ended, names), look(self.folder)
        if verdict.kind not in GOOD:
            return verdict
        inputs = [each for each in before if each != path and not self.scene.is_output(each)]
        if gone := [each for each in inputs if after.get(each) != before[each]]:
            return Verdict("lost", f"status {ended.status}: {', '.join(gone)}")
        if ended.status == 2:
            now = newest_steps(after)
            fallen = [run for run, step in newest_steps(before, path).items() if now.get(run, (-1, 0)) < step]
            return Verdict("lost", f"steps that had been saved in {', '.join(fallen)}") if fallen else verdict
        expected, got = self.prepared.expected, {each: after[each] for each in after if self.scene.is_output(each)}
        differing = [each for each in sorted({*got, *expected}) if got.get(each) != expected.get(each)]
        if differing == [path] and after.get(path or "") == before.get(path or "") and not _is_promised(path or ""):
            return Verdict("legitimate", "left as it was")
        # Of a damaged log the whole lines stay; a folder in a result's place may hold something.
        differing = [each for each in differing if each != path or not each.endswith("log.jsonl")]
        if differing and path and self.scene.is_edited(path):
            return Verdict("legitimate")
        return Verdict("silent", f"other results: {', '.join(differing)}") if differing else Verdict("identical")

    def recover(self, verdict: Verdict) -> Verdict:
        """The verdict on an error, once the same commands have run with the disturbance taken back."""
        if verdict.kind != "clear error":
            return verdict
        again = self.judge(self.run(), look(self.folder))
        return verdict if again.kind == "identical" else Verdict("lost", f"taken back: {again.kind}: {again.why}")

    def is_finished(self) -> bool:
        """Whether all results are there."""
        return self.prepared.expected.items() <= look(self.folder).items()


def judge_end(ended: Ended, names: tuple[str, ...] = (), statuses: tuple[int, ...] = (0, 2)) -> Verdict:
    """What is to be said of a command by its status and its output alone."""
    if ended.status is None:
        return Verdict("hang", f"at work after {ended.seconds:.0f} seconds")
    if _TRACEBACK.search(ended.text) or ended.status not in statuses:
        return Verdict("traceback", f"status {ended.status}: {ended.text[-300:]}")
    if ended.status != 2:
        return Verdict("identical")
    _, *messages = re.split(r"^(?=.*\berror: )", ended.stderr, flags=re.IGNORECASE | re.MULTILINE)
    if len(messages) != 1:
        return Verdict("unclear", f"{len(messages)} lines with `error:`: {ended.stderr[-300:]}")
    # A name, and not as a part of another word.
    patterns = [rf"(?<![\w-]){re.escape(name)}" + r"(?![\w-])" * name[-1].isalnum() for name in names]
    if names and not re.search("|".join(patterns), messages[0]):
        return Verdict("unclear", f"says nothing of {' or '.join(names)}: {messages[0][:300]}")
    return Verdict("clear error", messages[0])


def _is_promised(path: str) -> bool:
    """Whether the project promises that a finished run mends or refuses a damaged result."""
    return path.endswith(SEALED) or "predictions" in Path(path).parts


def damage(draw: random.Random, sandbox: Sandbox) -> tuple[str, Verdict]:
    """A file that is damaged before the run, or fails during it; then it is as it was, and the run goes on."""
    paths = [path for path in look(sandbox.folder) if not path.endswith("lock")]
    # Each kind of file as often as another.
    kinds = sorted({_kind_of(path) for path in paths})
    kind = draw.choice(kinds) if kinds else ""
    path = draw.choice([path for path in paths if _kind_of(path) == kind]) if kinds else None
    target, hook = sandbox.folder / (path or ""), None
    choice = draw.random()
    if path is None or choice < 0.1:
        name, after, path = draw.choice(("ENOSPC", "EDQUOT", "EIO", "EROFS")), draw.randint(1, 12), None
        what, hook = f"{name} when file {after} is written", fails_to_write(name, after)
    elif choice < 0.3:
        name, after = draw.choice(("EIO", "ESTALE", "EACCES", "EMFILE", "ENOMEM")), draw.choice((0, 0, 0, 1, 2))
        what, hook = f"{path}: {name} when it is opened after {after} times", fails_to_open(target, name, after)
    else:
        what = f"{path}: {damage_file(draw, target)}"
    before = look(sandbox.folder)
    machine = ("Too many open files", "Cannot allocate memory") if hook else ()
    names = (*_names_of(path), *machine) if path else ()
    verdict = sandbox.judge(sandbox.run(hook), before, path, names)
    if path and not hook and verdict.kind == "clear error":
        remove(target)
        shutil.copy2(sandbox.prepared.folder / path, target)
    return what, sandbox.recover(verdict)


def _kind_of(path: str) -> str:
    """What a file is, whatever its number: `model/*.cp`, `corpora/*.jsonl`."""
    name = Path(path).name
    ending = f"*{Path(path).suffix}" if name[:1].isdigit() or name.startswith(("cp-", "story", "wiki_")) else name
    return f"{Path(path).parts[0]}/{ending}"


def _names_of(path: str) -> tuple[str, ...]:
    """Words of which an error about a file says one: its name, or its folder; of an instance of WikiHop's its id."""
    parent = Path(path).parent
    # The stages of a run stand for the run.
    folders = {str(each) for each in (parent, parent.parent if parent.name == "stages" else parent)} - {"."}
    ends = [f"{each}{end}" for each in sorted(folders) for end in ("/", ":", *((", ", ". ") if "/" in each else ()))]
    return (os.path.basename(path), *ends, *(["WH_"] if "wikihop" in path else []))


def mistype(draw: random.Random, sandbox: Sandbox) -> tuple[str, Verdict]:
    """A config or a flag that is not what it should be."""
    typed = draw_input(draw, sandbox.scene.commands[0], sandbox.folder)
    before = look(sandbox.folder)
    ended = run_input(typed, sandbox.folder)
    verdict = judge_end(ended, typed.names)
    if verdict.kind == "clear error":
        after = look(sandbox.folder)
        if gone := [path for path in before if not sandbox.scene.is_output(path) and after.get(path) != before[path]]:
            verdict = Verdict("lost", ", ".join(gone))
    if (sandbox.folder / "hacked").exists():
        verdict = Verdict("silent", "what was typed was run")
    return typed.what[:400], Verdict("legitimate") if verdict.kind == "identical" else verdict


def fill_disk(draw: random.Random, sandbox: Sandbox) -> tuple[str, Verdict]:
    """A disk with room for a part of what a run writes; then there is room, and it goes on."""
    room = int(10 ** draw.uniform(3.6, 5.6))
    before = look(sandbox.folder)
    with _limited_disk(sandbox.folder, room) as hook:
        verdict = sandbox.judge(sandbox.run(hook), before)
    return f"a disk with {room // 1024} KiB left", sandbox.recover(verdict)


@contextmanager
def _limited_disk(folder: Path, room: int) -> Iterator[Hook | None]:
    """A disk of its own for a folder, with room that ends with the context; a limit of files where none can be mounted
    (containers).
    """
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "campaign", str(folder)]
    shown = folder.with_name("shown")
    copy(folder, shown)
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        return
    shutil.copytree(shown, folder, dirs_exist_ok=True)
    status = os.statvfs(folder)
    taken = (status.f_blocks - status.f_bfree) * status.f_frsize
    subprocess.run(["mount", "-o", f"remount,size={taken + room}", folder], check=True)
    yield None
    subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)


def limit_memory(draw: random.Random, sandbox: Sandbox) -> tuple[str, Verdict]:
    """A limit of memory, as `ulimit -v` sets it; then there is none, and the run goes on."""
    room = int(10 ** draw.uniform(6, 8.3))
    before = look(sandbox.folder)
    ended = sandbox.run(lambda: set_memory_limit(room))
    if ended.status == -signal.SIGABRT and (said := _OUT_OF_MEMORY.search(ended.stderr)):
        # A library's allocator has ended the process and said why: no line of Python runs after that.
        ended = Ended(2, ended.stdout, f"error: {said[0]}")
    verdict = sandbox.judge(ended, before)
    return f"{room / 1e6:.1f} MB of memory left", sandbox.recover(verdict)


def kill(draw: random.Random, sandbox: Sandbox) -> tuple[str, Verdict]:
    """One to four kills of a run at random moments, of its first process or all; then it is run to its end."""
    hits = []
    for _ in range(draw.randint(1, 4)):
        before = look(sandbox.folder)
        command = draw.choice(sandbox.scene.commands[-1:])
        number = draw.choice((*(signal.SIGKILL,) * 6, signal.SIGTERM, signal.SIGINT))
        running = Running(command, sandbox.folder)
        if running.wait(max(0.05, draw.random() * sandbox.prepared.seconds)) is not None:
            break
        running.send(number, whole=draw.random() < 0.5)
        ended = running.end()
        hits.append(number.name)
        now = newest_steps(look(sandbox.folder))
        if any(now.get(run, (-1, 0)) < step for run, step in newest_steps(before).items()):
            return ", ".join(hits), Verdict("lost", "steps that had been saved")
        stopped = tuple(status for each in (signal.SIGTERM, signal.SIGINT) for status in (-each, 128 + each))
        verdict = judge_end(ended, statuses=(0, *stopped))
        if number != signal.SIGKILL and verdict.kind not in GOOD and not sandbox.is_finished():
            return ", ".join(hits), verdict
    what = ", ".join(hits) or "over before the kill"
    ended = sandbox.run()
    # Some commands refuse to write over what they had finished when they were killed.
    refused = ended.status == 2 and sandbox.is_finished()
    return what, Verdict("identical") if refused else sandbox.judge(ended, look(sandbox.folder))


KINDS: Mapping[str, Callable[[random.Random, Sandbox], tuple[str, Verdict]]] = {
    "damage": damage,
    "input": mistype,
    "kills": kill,
    "disk": fill_disk,
    "memory": limit_memory,
}


def try_out(kind: str, name: str, prepared: Mapping[str, Prepared], folder: Path) -> tuple[str, Verdict]:
    """Try a trial in a folder, which is not there yet and is removed at the end. Returns what was done to which scene.

    name: decides all that is random.
    """
    folder.mkdir()
    draw = random.Random(name)
    # A finished run and a service write nothing that a kill or a disk could disturb.
    idle = {each for each in prepared if each.endswith("-finished") or each.startswith("serve")}
    fitting = sorted(set(prepared) - idle if kind in ("kills", "disk") else prepared)
    scene = draw.choice(fitting)
    try:
        what, verdict = KINDS[kind](draw, Sandbox(prepared[scene], folder / "sandbox"))
        return f"{scene}: {what}", verdict
    finally:
        unmount_below(folder)
        remove(folder)


def unmount_below(folder: Path) -> None:
    """Unmount the disks of trials."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", place], check=False)
