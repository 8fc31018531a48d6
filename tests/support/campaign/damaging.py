"""Trials of damage: a file that a run reads is not what it was, or does not answer."""

import contextlib
import errno
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path

from campaign import trees, world
from campaign.damages import NotOfThisKind, any_damage, content_damage, keep_time
from campaign.faults import Mark, any_fault, fails_to_write, without_permission
from campaign.results import log_lines
from campaign.scenes import Prepared
from campaign.tokenizer_files import TOKENIZER_FILES, is_consistent
from campaign.trial import Outcome, Sandbox, Trial, finish, restore
from campaign.verdicts import Disturbance, Verdict, condemned

_TRIES = 50
_FAULTS = 3
"""Faults that are drawn, until one comes to pass: a file that is not read cannot fail."""
_SMALL = 1.0
"""Seconds of a scene up to which it is always run again once its damage is taken back; others by lot."""
_MISSING = ("gone", "another file of its kind in its place", "a folder in its place")


def damage(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """A file damaged before the run, or one that fails during it."""
    began, draw = time.monotonic(), trial.draw
    names = [name for name in sorted(prepared) if prepared[name].targets]
    if not trial.real and draw.random() < 0.3:
        for _ in range(_FAULTS):
            outcome = _fault(trial, draw, Sandbox(prepared[draw.choice(names)], folder), began)
            if outcome is not None:
                return outcome
    chosen = prepared[draw.choice(names)]
    sandbox = Sandbox(chosen, folder)
    try:
        disturbance = _damage(draw, sandbox)
        assert disturbance.path is not None
        before = sandbox.look()
        lines = _good_lines(sandbox, disturbance.path)
        ended = sandbox.run(real=trial.real)
        verdict = sandbox.judge(disturbance, ended, before)
        if verdict.good and lines - log_lines(folder / disturbance.path):
            verdict = Verdict("lost", "whole lines of the log")
        # Rows and corpora that are declared unfinished are not lost where the same command finishes them again.
        unfinished = verdict.kind == "lost" and sandbox.is_unfinished(ended)
        again = chosen.seconds < _SMALL or draw.random() < 0.4
        if unfinished or (verdict.kind == "clear error" and again):
            restore(sandbox, disturbance.path)
            after = sandbox.recovered()
            verdict = Verdict("clear error", verdict.why) if after.good else after
        return finish(trial, sandbox, disturbance, verdict, began)
    finally:
        sandbox.close()


def same(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """A file of a dataset or a run changed so that size, time and inode stay, after a run has read it once."""
    began, draw = time.monotonic(), trial.draw
    names = [name for name in sorted(prepared) if "dataset" in prepared[name].scene.needs]
    sandbox = Sandbox(prepared[draw.choice(names)], folder)
    try:
        if "model" in sandbox.prepared.scene.needs and (folder / "model" / "model" / "cp-0001.model").exists():
            sandbox.run_all([world.VALIDATE])  # it verifies the rows, and remembers that it did
            (folder / "model" / "model" / "validation.json").unlink(missing_ok=True)
        disturbance = _same_size(draw, sandbox)
        before = sandbox.look()
        ended = sandbox.run(real=trial.real)
        verdict = sandbox.judge(disturbance, ended, before)
        return finish(trial, sandbox, disturbance, verdict, began, row="damage, same size and time")
    finally:
        sandbox.close()


def _same_size(draw: random.Random, sandbox: Sandbox) -> Disturbance:
    for _ in range(_TRIES):
        path = world.pick(draw, sandbox.prepared.targets)
        target = sandbox.folder / path
        stat = target.stat()
        chosen = content_damage(draw, target)
        with contextlib.suppress(NotOfThisKind):
            chosen.apply(draw, target)
            keep_time(target, stat)
            edited = sandbox.prepared.is_edited(path)
            return Disturbance(f"{path}: {chosen.name}, same size and time", path, names_of(path), edited)
    raise AssertionError(f"{sandbox.prepared.scene.name}: nothing to damage")


def _damage(draw: random.Random, sandbox: Sandbox) -> Disturbance:
    for _ in range(_TRIES):
        path = world.pick(draw, sandbox.prepared.targets)
        target = sandbox.folder / path
        chosen = any_damage(draw, target)
        try:
            chosen.apply(draw, target)
        except NotOfThisKind:
            restore(sandbox, path)
            continue
        # A folder that lacks a file, has another one of its kind or a folder is what its user made of it; a tree of
        # packages may hold anything.
        missing = chosen.name in _MISSING or "docstrings" in path or path.endswith("tokenizer_config.json")
        edited = (chosen.content and sandbox.prepared.is_edited(path)) or (missing and sandbox.prepared.is_users(path))
        if edited and chosen.content and target.name in TOKENIZER_FILES:
            edited = is_consistent(target.parent)
        cut = not target.is_file() or target.stat().st_size < (sandbox.prepared.folder / path).stat().st_size
        return Disturbance(f"{path}: {chosen.name}", path, names_of(path), edited, cut)
    raise AssertionError(f"{sandbox.prepared.scene.name}: nothing to damage")


def _good_lines(sandbox: Sandbox, path: str) -> set[str]:
    """What a damaged log still says rightly."""
    if os.path.basename(path) != "log.jsonl":
        return set()
    return log_lines(sandbox.folder / path) & log_lines(sandbox.prepared.folder.with_name("after0") / path)


def _fault(trial: Trial, draw: random.Random, sandbox: Sandbox, began: float) -> Outcome | None:
    """A file that fails for a while, or for another user; None where nobody asked for it, and all went well."""
    try:
        return _failing(trial, draw, sandbox, began)
    finally:
        sandbox.close()


def _failing(trial: Trial, draw: random.Random, sandbox: Sandbox, began: float) -> Outcome | None:
    mark = Mark()
    before = sandbox.look()
    path = world.pick(draw, sandbox.prepared.targets)
    target = sandbox.folder / path
    choice = draw.random()
    if choice < 0.2:
        if draw.random() < 0.3:
            path = os.path.dirname(path)
            target = target.parent
        mode = target.stat().st_mode
        what, hook = "no permission", without_permission(target, sandbox.folder)
    elif choice < 0.3:
        name, after = draw.choice(("ENOSPC", "EDQUOT", "EIO", "EROFS")), draw.randint(1, 12)
        path, what, hook = "", f"{name} when file {after} is written", fails_to_write(name, mark, after)
    else:
        what, hook = any_fault(draw, target, target.stat().st_size, mark)
    # What the whole machine lacks is no file's fault.
    lacking = [os.strerror(getattr(errno, name)) for name in ("ENOMEM", "EMFILE", "ENFILE") if name in what]
    names = (*names_of(path), *lacking) if path else ()
    # Of installed packages, what another user may not read is left out, and counted.
    edited = "docstrings" in path and what.startswith(("no permission", "EACCES", "EPERM"))
    disturbance = Disturbance(f"{path}: {what}", path or None, names, edited)
    ended = sandbox.run(hook=hook)
    if what == "no permission":
        with contextlib.suppress(FileNotFoundError):  # a leftover that was removed
            target.chmod(mode)
    verdict = sandbox.judge(disturbance, ended, before)
    if verdict.kind == "identical" and not mark:
        return None
    wrong = condemned(before, trees.listing(sandbox.folder))
    if wrong:
        verdict = Verdict("lost", f"set aside, with nothing wrong in it: {', '.join(wrong)}")
    elif verdict.kind in ("clear error", "unclear") or (verdict.kind == "lost" and sandbox.is_unfinished(ended)):
        after_all = sandbox.recovered()
        if not after_all.good or verdict.kind == "lost":
            verdict = Verdict("clear error", verdict.why) if after_all.good else after_all
    return finish(trial, sandbox, disturbance, verdict, began)


def names_of(path: str) -> tuple[str, ...]:
    """Words of which an error about a file says one: its name, or its folder as a path."""
    parent = os.path.dirname(path)
    # The stages of a run stand for the run.
    above = os.path.dirname(parent) if os.path.basename(parent) == "stages" else parent
    folders = [name for name in (parent, above) if name]
    # In a list of places only what has a slash in it is surely a path.
    ends = [(each, end) for each in folders for end in ("/", ":", *((", ", ". ") if "/" in each else ()))]
    return tuple(name for name in (os.path.basename(path), *(f"{each}{end}" for each, end in ends)) if name)
