"""Trials of company: others write where a command writes, change what it reads, or run the same command beside it.

Of commands with a folder of finished parts of their own.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from campaign import trees
from campaign.commands import Ended, Running
from campaign.damages import NotOfThisKind, any_damage
from campaign.damaging import names_of
from campaign.faults import Mark, changes_when_opened
from campaign.results import results
from campaign.scenes import Prepared
from campaign.trial import LIMIT, Outcome, Sandbox, Trial, finish, restore
from campaign.verdicts import Disturbance, Verdict, judge

_MINE = "what a user keeps here"
_TRIES = 50


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text(_MINE)


def _to_file(path: Path) -> None:
    path.symlink_to(_theirs(path))


def _to_folder(path: Path) -> None:
    path.symlink_to(_theirs(path).parent)


def _theirs(path: Path) -> Path:
    """Another file of the user's, which a link leads to."""
    folder = path.parent / "theirs"
    folder.mkdir(exist_ok=True)
    (folder / "thesis.txt").write_text(_MINE)
    return folder / "thesis.txt"


_STRANGERS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text(_MINE),
    "a folder": _folder,
    "a link to a file": _to_file,
    "a link to a folder": _to_folder,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
}


def strangers(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """Somebody's file or folder where a command has its temporary names, its parts and its results."""
    began, draw = time.monotonic(), trial.draw
    sandbox = Sandbox(_with_parts(draw, prepared), folder)
    try:
        known = set(trees.listing(folder))
        path = _place(draw, sandbox)
        kind = draw.choice(sorted(_STRANGERS))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _STRANGERS[kind](folder / path)
        before = sandbox.look()
        mine = {name: what for name, what in before.items() if name not in known and what != "folder"}
        disturbance = Disturbance(f"{path}: {kind} of somebody's", path, names_of(path))
        ended = sandbox.run(real=trial.real)
        after = trees.listing(folder)
        got = _own_results(sandbox, mine) if ended.status == 0 else {}
        verdict = judge(disturbance, ended, before, after, got, sandbox.reference)
        if gone := [name for name, what in mine.items() if after.get(name) != what]:
            verdict = Verdict("lost", f"of somebody's: {', '.join(gone)}")
        elif verdict.kind == "clear error":
            _take_away(folder, path, mine)
            verdict = _recovered(sandbox, verdict)
        return finish(trial, sandbox, disturbance, verdict, began)
    finally:
        sandbox.close()


def _with_parts(draw: random.Random, prepared: Mapping[str, Prepared]) -> Prepared:
    return prepared[draw.choice([name for name in sorted(prepared) if prepared[name].scene.parts])]


def _place(draw: random.Random, sandbox: Sandbox) -> str:
    """A name of the command's that nothing has."""
    parts = sandbox.prepared.scene.parts
    assert parts is not None
    results_ = sorted(sandbox.prepared.expected)
    pieces = ("00000000", "00000002", "train-0-1000", "train-2000-2500", "finished", "mark", "notes.txt")
    names = [parts, *(f"{parts}/{piece}{end}" for piece in pieces for end in ("", ".tmp"))]
    names += [f"{name}{end}" for name in results_ for end in ("", ".tmp", ".parts")]
    free = [name for name in names if not os.path.lexists(sandbox.folder / name)]
    # Without a folder of parts its own name, and what is within it, are of a user's folder as a whole.
    return draw.choice([name for name in free if os.path.dirname(name) in ("", os.path.dirname(parts), parts)])


def _own_results(sandbox: Sandbox, mine: Mapping[str, str]) -> dict[str, str]:
    """The command's results, without what is somebody's."""
    found = results(sandbox.folder, sandbox.prepared.scene.outputs)
    return {name: digest for name, digest in found.items() if name not in mine}


def _take_away(folder: Path, path: str, mine: Mapping[str, str]) -> None:
    for name in (path, *mine):
        with contextlib.suppress(FileNotFoundError):
            trees.remove(folder / name)
    for name in sorted({os.path.dirname(name) for name in (path, *mine)}, reverse=True):
        if name:
            with contextlib.suppress(OSError):
                (folder / name).rmdir()


def _recovered(sandbox: Sandbox, verdict: Verdict) -> Verdict:
    after = sandbox.recovered()
    return Verdict("clear error", verdict.why) if after.good else after


def changing(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """What a command reads more than once has another content from one of the times on."""
    began, draw = time.monotonic(), trial.draw
    chosen = prepared[draw.choice([name for name in sorted(prepared) if prepared[name].scene.read])]
    sandbox = Sandbox(chosen, folder)
    try:
        path, openings = draw.choice(chosen.scene.read)
        content = _other_content(draw, folder / path)
        restore(sandbox, path)
        after, mark = draw.randrange(openings + 3), Mark()
        disturbance = Disturbance(
            f"{path}: changed when it is opened after {after} times", path, names_of(path), edited=after < openings
        )
        before = sandbox.look()
        ended = sandbox.run(hook=changes_when_opened(folder / path, content, mark, after))
        now = trees.listing(folder)
        verdict = judge(
            disturbance, ended, before | {path: now.get(path, "")}, now,
            results(folder, chosen.scene.outputs) if ended.status == 0 else {}, sandbox.reference,
        )  # fmt: skip
        if verdict.kind == "clear error":
            restore(sandbox, path)
            verdict = _recovered(sandbox, verdict)
        return finish(trial, sandbox, disturbance, verdict, began, real=False)
    finally:
        sandbox.close()


def _other_content(draw: random.Random, path: Path) -> bytes:
    for _ in range(_TRIES):
        chosen = any_damage(draw, path)
        if chosen.content:
            with contextlib.suppress(NotOfThisKind):
                chosen.apply(draw, path)
                return path.read_bytes()
    raise AssertionError(f"{path}: nothing to change")


def together(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """The same command twice or three times at once: each ends well or says that another has the folder."""
    began, draw = time.monotonic(), trial.draw
    chosen = _with_parts(draw, prepared)
    sandbox = Sandbox(chosen, folder)
    beside = [folder.with_name(f"{folder.name}-{number}") for number in range(draw.randint(2, 3))]
    try:
        before = sandbox.look()
        command = chosen.scene.commands[0]
        running = []
        for place in beside:
            running.append(Running(command, folder, trial.real, output=place))
            time.sleep(draw.uniform(0, 0.5) * draw.choice((0, 1)) * chosen.seconds)
        ended = [each.end(LIMIT * (4 if trial.real else 1)) for each in running]
        assert chosen.scene.parts is not None
        names = (chosen.scene.parts, *chosen.scene.outputs)
        disturbance = Disturbance(
            f"{len(ended)} at once", names=tuple(f"{name}{end}" for name in names for end in "/:")
        )
        verdict = _together(sandbox, disturbance, ended, before)
        return finish(trial, sandbox, disturbance, verdict, began)
    finally:
        sandbox.close()
        for place in beside:
            for name in ("stdout", "stderr"):
                place.with_name(f"{place.name}.{name}").unlink(missing_ok=True)


def _together(sandbox: Sandbox, disturbance: Disturbance, ended: list[Ended], before: trees.Tree) -> Verdict:
    if not any(each.status == 0 for each in ended):  # each may have been in another's way
        ended = [*ended, sandbox.run()]
    done = next((each for each in ended if each.status == 0), ended[-1])
    verdicts = [sandbox.judge(disturbance, each, before) for each in ended if each.status != 0]
    verdict = sandbox.judge(disturbance, done, before)
    bad = [each for each in (verdict, *verdicts) if not each.good]
    return bad[0] if bad else verdict
