"""Trials of kills: a run is killed at random moments and started again until it is done."""

import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from campaign import trees
from campaign.commands import Ended, Running
from campaign.scenes import Prepared
from campaign.trial import LIMIT, Outcome, Sandbox, Trial, finish
from campaign.verdicts import TRACEBACK, Disturbance, Verdict

_IMPORTS = 2.5
"""Seconds that a real process takes until it begins."""
_REAL_OF = 3
"""One of so many trials is of real processes."""
_STOPPED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def kills(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """One to four kills of a run; SIGTERM among them, to its first process or all."""
    began, draw = time.monotonic(), trial.draw
    chosen = prepared[draw.choice(sorted(name for name in prepared if not name.endswith("-finished")))]
    launched = chosen.scene.commands[0].launched
    real = launched or trial.number % _REAL_OF == 0
    sandbox = Sandbox(chosen, folder)
    try:
        before = trees.listing(folder)
        hits, complaint = [], None
        for _ in range(3 if real else draw.randint(1, 4)):
            hit, complaint = _kill(draw, sandbox, real)
            hits += [hit] if hit else []
            if complaint is not None:
                break
        ended = sandbox.run(real=real, limit=3 * LIMIT)
        verdict = complaint or sandbox.judge(Disturbance(""), ended, before)
        if verdict.kind == "fallback":
            verdict = Verdict("identical")
        disturbance = Disturbance(", ".join(hits) or "over before the kill")
        return finish(trial, sandbox, disturbance, verdict, began, real=real, count=len(hits))
    finally:
        sandbox.close()


def _kill(draw: random.Random, sandbox: Sandbox, real: bool) -> tuple[str | None, Verdict | None]:
    """Start a run and kill it.

    Returns:
        The kill in words, None where the run was over before; and what is wrong with how it stopped.
    """
    scene, seconds = sandbox.prepared.scene, sandbox.prepared.seconds
    command = draw.choice(scene.commands) if not sandbox.prepared.scene.first else scene.commands[0]
    moment = draw.uniform(0, 1.1 * seconds)
    if command.launched:
        moment = draw.uniform(0.4 * seconds, seconds)
    elif real:
        moment = draw.uniform(0.5 * _IMPORTS, _IMPORTS + 1.5 * seconds)
    gently, whole = draw.random() < 0.25, draw.random() < 0.5
    running = Running(command, sandbox.folder, real)
    if running.wait(moment) is not None:
        ended = running.end(LIMIT)
        return None, _wrong(ended, command.launched) if ended.status != 0 else None
    running.send(signal.SIGTERM if gently else signal.SIGKILL, whole or (command.launched and not gently))
    ended = running.end(LIMIT)
    wrong = _wrong(ended, command.launched) if gently else None
    word = "SIGTERM" if gently else "SIGKILL"
    return f"{word} after {moment:.2f} s", wrong


def _wrong(ended: Ended, launched: bool) -> Verdict | None:
    if ended.hung:
        return Verdict("hang", "it did not stop")
    if launched:
        return None
    if TRACEBACK.search(ended.text) or ended.status not in _STOPPED:
        return Verdict("traceback", f"status {ended.status}: {ended.text[-300:]}")
    return None
