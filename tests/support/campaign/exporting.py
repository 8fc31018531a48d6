"""Trials of exports: something of somebody's where one writes, and several at once into one folder."""

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from campaign import trees
from campaign.commands import Command, Ended, Running
from campaign.faults import slow_to_write
from campaign.results import results
from campaign.scenes import EARLIER, NEW, Prepared
from campaign.trial import LIMIT, Outcome, Sandbox, Trial, finish
from campaign.verdicts import Disturbance, Verdict

_DEST = "exported"
_PLACES = (_DEST, _DEST, f"{_DEST}.tmp", f".{_DEST}.tmp", f"{_DEST}.replaced")
"""Where an export writes, and names that it might take for itself."""


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("mine")


def _link(path: Path) -> None:
    _folder(path.parent / "theirs")
    path.symlink_to("theirs")


_STRANGERS: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("mine"),
    "a folder": _folder,
    "a link to a folder": _link,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a FIFO": os.mkfifo,
}


def exports(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """An export that meets somebody's files, or other exports into the same folder."""
    began, draw = time.monotonic(), trial.draw
    sandbox = Sandbox(prepared[NEW], folder)
    try:
        what, verdict = (_stranger if draw.random() < 0.5 else _together)(draw, sandbox, prepared, trial.real)
        return finish(trial, sandbox, Disturbance(what), verdict, began)
    finally:
        sandbox.close()


def _stranger(
    draw: random.Random, sandbox: Sandbox, prepared: Mapping[str, Prepared], real: bool
) -> tuple[str, Verdict]:
    place, kind = draw.choice(_PLACES), draw.choice(sorted(_STRANGERS))
    _STRANGERS[kind](sandbox.folder / place)
    disturbance = Disturbance(f"{place}: {kind} of somebody's", place, (place,))
    before = sandbox.look()
    ended = sandbox.run(real=real)
    verdict = sandbox.judge(disturbance, ended, before)
    after = trees.listing(sandbox.folder)
    if changed := [path for path, each in before.items() if after.get(path) != each]:
        verdict = Verdict("lost", f"of somebody's: {', '.join(changed)}")
    elif place == _DEST and verdict.kind != "clear error":
        verdict = Verdict("silent", f"written where {kind} was")
    elif verdict.kind == "clear error":
        trees.remove(sandbox.folder / place)
        recovered = sandbox.recovered()
        verdict = verdict if recovered.good else recovered
    return disturbance.what, verdict


def _together(
    draw: random.Random, sandbox: Sandbox, prepared: Mapping[str, Prepared], real: bool
) -> tuple[str, Verdict]:
    """Of exports that may replace nothing one is written; of those that may, any: whole, and nothing beside it."""
    forced = draw.random() < 0.5
    names = [draw.choice((NEW, EARLIER)) for _ in range(draw.randint(2, 3))]
    beside = [sandbox.folder.with_name(f"{sandbox.folder.name}-{number}") for number in range(len(names))]
    before, running = sandbox.look(), []
    for name, output in zip(names, beside, strict=True):
        (command,) = prepared[name].scene.commands
        command = Command(command.script, (*command.flags, *(["--force"] if forced else [])))
        running.append(Running(command, sandbox.folder, real, slow_to_write(0.2 * draw.random()), output))
        time.sleep(draw.choice((0.0, 0.0, draw.random())) * prepared[name].seconds)
    ended = [each.end(LIMIT * (4 if real else 1)) for each in running]
    for output in beside:
        for name in ("stdout", "stderr"):
            output.with_name(f"{output.name}.{name}").unlink()
    what = f"{len(names)} at once{' with --force' if forced else ''}: {', '.join(names)}"
    disturbance = Disturbance(what, names=(_DEST,))
    for each in ended:
        if each.status != 0:
            verdict = sandbox.judge(disturbance, each, before)
            if not verdict.good:
                return what, verdict
    return what, _of_all(
        sandbox, prepared, [name for name, each in zip(names, ended, strict=True) if _is_done(each)], forced
    )


def _is_done(ended: Ended) -> bool:
    return ended.status == 0


def _of_all(sandbox: Sandbox, prepared: Mapping[str, Prepared], done: list[str], forced: bool) -> Verdict:
    if not done or (len(done) > 1 and not forced):
        return Verdict("lost" if done else "unclear", f"{len(done)} say that they have exported")
    left = {path.name for path in sandbox.folder.iterdir()} - {Path(path).parts[0] for path in sandbox.reference.after}
    if left:
        return Verdict("unclear", f"left behind: {', '.join(sorted(left))}")
    got = results(sandbox.folder, prepared[NEW].scene.outputs)
    card = (sandbox.folder / _DEST / "README.md").read_text()
    whole = [
        name for name in done if prepared[name].expected == got and f"checkpoint {_CHECKPOINTS[name]}.model" in card
    ]
    return Verdict("identical") if whole else Verdict("silent", "none of the exports whole")


_CHECKPOINTS = {NEW: "cp-0001", EARLIER: "cp-0000"}
