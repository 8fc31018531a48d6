"""Trials of company: others write where a command writes, change what it reads, or run the same command beside it.

Of exports, and of commands with a folder of finished parts of their own.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from campaign import trees
from campaign.commands import Command, Ended, Hook, Running
from campaign.damages import NotOfThisKind, any_damage
from campaign.damaging import names_of
from campaign.faults import changes_when_opened, slow_to_write
from campaign.results import results
from campaign.scenes import EARLIER, NEW, Prepared
from campaign.trial import LIMIT, Attempt, Outcome, Sandbox
from campaign.verdicts import Disturbance, Verdict

_MINE = "what a user keeps here"
_TRIES = 50
_EXPORTED = "exported"
_EXPORT_NAMES = (_EXPORTED, _EXPORTED, f"{_EXPORTED}.tmp", f".{_EXPORTED}.tmp", f"{_EXPORTED}.replaced")
"""Where an export writes, and names that it might take for itself."""
_CHECKPOINTS = {NEW: "cp-0001", EARLIER: "cp-0000"}


def _write_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text(_MINE)


def _link_to(target: str) -> Callable[[Path], None]:
    """A link to another file or folder of the user's."""

    def link(path: Path) -> None:
        _write_folder(path.parent / "theirs")
        path.symlink_to(path.parent / target)

    return link


_STRANGERS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text(_MINE),
    "a folder": _write_folder,
    "a link to a file": _link_to("theirs/thesis.txt"),
    "a link to a folder": _link_to("theirs"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
}


def strangers(attempt: Attempt) -> Outcome:
    """Somebody's file or folder where a command has its temporary names, its parts and its results."""
    chosen = attempt.choose(_has_parts)
    return _meet_stranger(attempt, chosen, _names_of_its_own(chosen))


def exports(attempt: Attempt) -> Outcome:
    """An export that meets somebody's files, or other exports into the same folder."""
    if attempt.draw.random() < 0.5:
        return _meet_stranger(attempt, attempt.prepared[NEW], _EXPORT_NAMES)
    return _export_together(attempt)


def _has_parts(scene: Prepared) -> bool:
    return scene.scene.parts is not None


def _names_of_its_own(prepared: Prepared) -> list[str]:
    """Names that the command uses and nothing has."""
    parts = prepared.scene.parts
    assert parts is not None
    pieces = ("00000000", "00000002", "train-0-1000", "train-2000-2500", "finished", "mark", "notes.txt")
    names = [parts, *(f"{parts}/{piece}{end}" for piece in pieces for end in ("", ".tmp"))]
    names += [f"{name}{end}" for name in sorted(prepared.expected) for end in ("", ".tmp", ".parts")]
    free = [name for name in names if not os.path.lexists(prepared.folder / name)]
    # Without a folder of parts its own name, and what is within it, are of a user's folder as a whole.
    return [name for name in free if os.path.dirname(name) in ("", os.path.dirname(parts), parts)]


def _meet_stranger(attempt: Attempt, chosen: Prepared, names: Sequence[str]) -> Outcome:
    sandbox = attempt.open(chosen)
    path, kind = attempt.draw.choice(names), attempt.draw.choice(sorted(_STRANGERS))
    (sandbox.folder / path).parent.mkdir(parents=True, exist_ok=True)
    _STRANGERS[kind](sandbox.folder / path)
    before = sandbox.look()
    mine = {name: what for name, what in before.items() if name not in chosen.before and what != "folder"}
    disturbance = Disturbance(f"{path}: {kind} of somebody's", path, names_of(path))
    ended = sandbox.run(real=attempt.real)
    verdict = sandbox.judge(disturbance, ended, before, strangers=mine)
    after = trees.listing(sandbox.folder)
    if gone := [name for name, what in mine.items() if after.get(name) != what]:
        verdict = Verdict("lost", f"of somebody's: {', '.join(gone)}")
    elif verdict.kind != "clear error" and any(name.startswith(f"{path}/") for name in chosen.expected):
        verdict = Verdict("silent", f"written where {kind} was")
    else:
        verdict = sandbox.recover(verdict, ended, lambda: _take_away(sandbox.folder, [path, *mine]))
    return attempt.outcome(sandbox, disturbance.what, verdict)


def _take_away(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        trees.remove(folder / name)
    for parent in sorted({(folder / name).parent for name in names} - {folder}, reverse=True):
        with contextlib.suppress(OSError):  # what holds something else stays
            parent.rmdir()


def changing(attempt: Attempt) -> Outcome:
    """What a command reads more than once has another content from one of the times on."""
    chosen = attempt.choose(lambda scene: scene.scene.read)
    sandbox = attempt.open(chosen)
    path, openings = attempt.draw.choice(chosen.scene.read)
    content = _other_content(attempt.draw, sandbox.folder / path)
    sandbox.restore(path)
    after = attempt.draw.randrange(openings + 3)
    what = f"{path}: changed when it is opened after {after} times"
    disturbance = Disturbance(what, path, names_of(path), edited=after < openings)
    before = sandbox.look()
    ended = sandbox.run(hook=changes_when_opened(sandbox.folder / path, content, after))
    changed = {path: trees.listing(sandbox.folder).get(path, "")}
    verdict = sandbox.judge(disturbance, ended, before | changed)
    verdict = sandbox.recover(verdict, ended, lambda: sandbox.restore(path))
    return attempt.outcome(sandbox, what, verdict, real=False)


def _other_content(draw: random.Random, path: Path) -> bytes:
    for _ in range(_TRIES):
        chosen = any_damage(draw, path)
        if chosen.content:
            with contextlib.suppress(NotOfThisKind):
                chosen.apply(draw, path)
                return path.read_bytes()
    raise AssertionError(f"{path}: nothing to change")


def together(attempt: Attempt) -> Outcome:
    """The same command twice or three times at once: each ends well or says that another has the folder."""
    chosen = attempt.choose(_has_parts)
    sandbox = attempt.open(chosen)
    before = sandbox.look()
    command, count = chosen.scene.commands[0], attempt.draw.randint(2, 3)
    ended = _run_together(attempt, sandbox, [(command, None)] * count, pause=0.5 * chosen.seconds)
    if not any(each.status == 0 for each in ended):  # each may have been in another's way
        ended.append(sandbox.run())
    names = tuple(f"{name}{end}" for name in (chosen.scene.parts, *chosen.scene.outputs) for end in "/:")
    disturbance = Disturbance(f"{count} at once", names=names)
    # First one that ended well, of which the results have to be.
    verdicts = [sandbox.judge(disturbance, each, before) for each in sorted(ended, key=lambda each: each.status != 0)]
    return attempt.outcome(sandbox, disturbance.what, _first_bad(verdicts) or verdicts[0])


def _run_together(
    attempt: Attempt, sandbox: Sandbox, commands: Iterable[tuple[Command, Hook | None]], pause: float
) -> list[Ended]:
    """Run commands in one folder at once; some begin up to `pause` seconds after the one before."""
    running = []
    for number, (command, hook) in enumerate(commands):
        output = attempt.folder / f"output-{number}"
        running.append(Running(command, sandbox.folder, attempt.real, hook, output))
        time.sleep(attempt.draw.uniform(0, pause) * attempt.draw.choice((0, 1)))
    return [each.end(LIMIT * (4 if attempt.real else 1)) for each in running]


def _first_bad(verdicts: Iterable[Verdict]) -> Verdict | None:
    return next((each for each in verdicts if not each.good), None)


def _export_together(attempt: Attempt) -> Outcome:
    """Of exports that may replace nothing one is written; of those that may, any: whole, and nothing beside it."""
    sandbox, draw = attempt.open(attempt.prepared[NEW]), attempt.draw
    forced = draw.random() < 0.5
    names = [draw.choice((NEW, EARLIER)) for _ in range(draw.randint(2, 3))]
    before, commands = sandbox.look(), []
    for name in names:
        (command,) = attempt.prepared[name].scene.commands
        flags = (*command.flags, *(["--force"] if forced else []))
        commands.append((Command(command.script, flags), slow_to_write(0.2 * draw.random())))
    ended = _run_together(attempt, sandbox, commands, pause=attempt.prepared[NEW].seconds)
    what = f"{len(names)} at once{' with --force' if forced else ''}: {', '.join(names)}"
    disturbance = Disturbance(what, names=(_EXPORTED,))
    failed = _first_bad(sandbox.judge(disturbance, each, before) for each in ended if each.status != 0)
    done = [attempt.prepared[name] for name, each in zip(names, ended, strict=True) if each.status == 0]
    return attempt.outcome(sandbox, what, failed or _judge_exports(sandbox, done, forced))


def _judge_exports(sandbox: Sandbox, done: Sequence[Prepared], forced: bool) -> Verdict:
    if not done or (len(done) > 1 and not forced):
        return Verdict("lost" if done else "unclear", f"{len(done)} say that they have exported")
    left = {path.name for path in sandbox.folder.iterdir()} - {Path(path).parts[0] for path in sandbox.prepared.after}
    if left:
        return Verdict("unclear", f"left behind: {', '.join(sorted(left))}")
    got = results(sandbox.folder, sandbox.prepared.scene.outputs)
    card = (sandbox.folder / _EXPORTED / "README.md").read_text()
    for each in done:
        if each.expected == got and f"checkpoint {_CHECKPOINTS[each.scene.name]}.model" in card:
            return Verdict("identical")
    return Verdict("silent", "none of the exports whole")
