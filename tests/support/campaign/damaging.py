"""Trials of damage: a file that a run reads is not what it was, or does not answer."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from campaign import trees, world
from campaign.damages import Damage, NotOfThisKind, any_damage, content_damage
from campaign.faults import Mark, any_fault, fails_to_write, without_permission
from campaign.results import log_lines
from campaign.tokenizer_files import TOKENIZER_FILES, is_consistent
from campaign.trial import Attempt, Outcome, Sandbox
from campaign.verdicts import Disturbance, Verdict, condemned

_TRIES = 50
_FAULTS = 3
"""Faults that are drawn, until one comes to pass: a file that is not read cannot fail."""
_SMALL = 1.0
"""Seconds of a scene up to which it is always run again once its damage is taken back; others by lot."""
_MISSING = ("gone", "another file of its kind in its place", "a folder in its place")


def damage(attempt: Attempt) -> Outcome:
    """A file damaged before the run, or one that fails during it."""
    draw = attempt.draw
    if not attempt.real and draw.random() < 0.3:
        for _ in range(_FAULTS):
            outcome = _fault(attempt)
            if outcome is not None:
                return outcome
    sandbox = attempt.open(attempt.choose(lambda scene: scene.targets))
    path, chosen = damage_file(attempt, sandbox, any_damage)
    disturbance = _disturbance(sandbox, path, chosen)
    before, lines = sandbox.look(), _good_lines(sandbox, path)
    ended = sandbox.run(real=attempt.real)
    verdict = sandbox.judge(disturbance, ended, before)
    if verdict.good and lines - log_lines(sandbox.folder / path):
        verdict = Verdict("lost", "whole lines of the log")
    if verdict.kind == "lost" or sandbox.prepared.seconds < _SMALL or draw.random() < 0.4:
        verdict = sandbox.recover(verdict, ended, lambda: sandbox.restore(path))
    return attempt.outcome(sandbox, disturbance.what, verdict)


def same(attempt: Attempt) -> Outcome:
    """A file of a dataset or a run changed so that size, time and inode stay, after a run has read it once."""
    sandbox = attempt.open(attempt.choose(lambda scene: "dataset" in scene.scene.needs))
    trained = sandbox.folder / "model" / "model"
    if (trained / "cp-0001.model").exists():
        sandbox.run(world.VALIDATE)  # it verifies the rows, and remembers that it did
        (trained / "validation.json").unlink(missing_ok=True)
    path, chosen = damage_file(attempt, sandbox, content_damage)
    stat = (sandbox.prepared.folder / path).stat()
    os.utime(sandbox.folder / path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    what, edited = f"{path}: {chosen.name}, same size and time", sandbox.prepared.is_edited(path)
    before = sandbox.look()
    verdict = sandbox.judge(Disturbance(what, path, names_of(path), edited), sandbox.run(real=attempt.real), before)
    return attempt.outcome(sandbox, what, verdict, row="damage, same size and time")


def damage_file(attempt: Attempt, sandbox: Sandbox, choose: Callable[..., Damage]) -> tuple[str, Damage]:
    """Damage one of the sandbox's files: its path, and what was done to it."""
    for _ in range(_TRIES):
        path = world.pick(attempt.draw, sandbox.prepared.targets)
        target = sandbox.folder / path
        chosen = choose(attempt.draw, target)
        try:
            chosen.apply(attempt.draw, target)
        except NotOfThisKind:
            if not target.exists():
                sandbox.restore(path)
        else:
            return path, chosen
    raise AssertionError(f"{sandbox.prepared.scene.name}: nothing to damage")


def _disturbance(sandbox: Sandbox, path: str, chosen: Damage) -> Disturbance:
    target = sandbox.folder / path
    # A folder that lacks a file, has another one of its kind or a folder is what its user made of it; a tree of
    # packages may hold anything.
    missing = chosen.name in _MISSING or "docstrings" in path or path.endswith("tokenizer_config.json")
    edited = (chosen.content and sandbox.prepared.is_edited(path)) or (missing and sandbox.prepared.is_users(path))
    if edited and chosen.content and target.name in TOKENIZER_FILES:
        edited = is_consistent(target.parent)
    cut = not target.is_file() or target.stat().st_size < (sandbox.prepared.folder / path).stat().st_size
    return Disturbance(f"{path}: {chosen.name}", path, names_of(path), edited, cut)


def _good_lines(sandbox: Sandbox, path: str) -> set[str]:
    """What a damaged log still says rightly."""
    if os.path.basename(path) != "log.jsonl":
        return set()
    return log_lines(sandbox.folder / path) & log_lines(sandbox.prepared.done / path)


def _fault(attempt: Attempt) -> Outcome | None:
    """A file that fails for a while, or for another user; None where nobody asked for it, and all went well."""
    draw, mark = attempt.draw, Mark()
    sandbox = attempt.open(attempt.choose(lambda scene: scene.targets))
    before = sandbox.look()
    path = world.pick(draw, sandbox.prepared.targets)
    choice = draw.random()
    if choice < 0.2:
        path = os.path.dirname(path) if draw.random() < 0.3 else path
        mode = (sandbox.folder / path).stat().st_mode
        what, hook = "no permission", without_permission(sandbox.folder / path, sandbox.folder)
    elif choice < 0.3:
        name, after = draw.choice(("ENOSPC", "EDQUOT", "EIO", "EROFS")), draw.randint(1, 12)
        path, what, hook = "", f"{name} when file {after} is written", fails_to_write(name, mark, after)
    else:
        what, hook = any_fault(draw, sandbox.folder / path, mark)
    # What the whole machine lacks is no file's fault.
    lacking = [os.strerror(getattr(errno, name)) for name in ("ENOMEM", "EMFILE", "ENFILE") if name in what]
    # Of installed packages, what another user may not read is left out, and counted.
    edited = "docstrings" in path and what.startswith(("no permission", "EACCES", "EPERM"))
    disturbance = Disturbance(f"{path}: {what}", path or None, (*names_of(path), *lacking) if path else (), edited)
    ended = sandbox.run(hook=hook)
    if what == "no permission":
        with contextlib.suppress(FileNotFoundError):  # a leftover that was removed
            (sandbox.folder / path).chmod(mode)
    verdict = sandbox.judge(disturbance, ended, before)
    if verdict.kind == "identical" and not mark:
        return None
    wrong = condemned(before, trees.listing(sandbox.folder))
    if wrong:
        verdict = Verdict("lost", f"set aside, with nothing wrong in it: {', '.join(wrong)}")
    else:
        verdict = sandbox.recover(verdict, ended)
    return attempt.outcome(sandbox, disturbance.what, verdict)


def names_of(path: str) -> tuple[str, ...]:
    """Words of which an error about a file says one: its name, or its folder as a path."""
    parent = Path(path).parent
    # The stages of a run stand for the run.
    folders = {str(each) for each in (parent, parent.parent if parent.name == "stages" else parent)} - {"."}
    # In a list of places only what has a slash in it is surely a path.
    ends = [f"{each}{end}" for each in sorted(folders) for end in ("/", ":", *((", ", ". ") if "/" in each else ()))]
    # Of WikiHop's files an instance's name, such as WH_train_2, says enough.
    instances = ["WH_"] if "wikihop" in path else []
    return tuple(name for name in (os.path.basename(path), *ends, *instances) if name)
