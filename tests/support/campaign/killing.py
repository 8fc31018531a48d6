"""Trials of kills: a run is killed at random moments and started again until it is done."""

import random
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from campaign import trees
from campaign.commands import Ended, Running
from campaign.results import results
from campaign.scenes import EARLIER, NEW, Prepared
from campaign.trial import LIMIT, Outcome, Sandbox, Trial, finish
from campaign.verdicts import TRACEBACK, Disturbance, Verdict

_IMPORTS = 2.5
"""Seconds that a real process takes until it begins."""
_REAL_OF = 3
"""One of so many trials is of real processes."""
_TRIES = 3
_SIGNALS = (*(signal.SIGKILL,) * 6, signal.SIGTERM, signal.SIGINT)
_STOPPED = (0, *(sign for number in (signal.SIGTERM, signal.SIGINT) for sign in (-number, 128 + number)))


def kills(trial: Trial, prepared: Mapping[str, Prepared], folder: Path) -> Outcome:
    """One to four kills of a run, by SIGKILL or SIGTERM, to its first process or all."""
    began, draw = time.monotonic(), trial.draw
    chosen = prepared[draw.choice(sorted(name for name in prepared if not name.endswith("-finished")))]
    launched = chosen.scene.commands[0].launched
    real = launched or trial.number % _REAL_OF == 0
    wanted = 3 if real else draw.randint(1, 4)
    whole = chosen.seconds + (_IMPORTS if real and not launched else 0)
    sandbox = Sandbox(chosen, folder)
    try:
        before = trees.listing(folder)
        hits: list[str] = []
        wrong: Verdict | None = None
        for _ in range(_TRIES * wanted):
            sandbox.look()
            kill = _kill(draw, sandbox, real, whole)
            if sandbox.fell():
                wrong = Verdict("lost", f"steps that had been saved, by {kill.hit}")
                break
            if kill.hit is not None:
                hits.append(kill.hit)
            if _is_done(sandbox, kill.status):
                wrong = None
                break
            if kill.wrong is not None or len(hits) == wanted or (hits and kill.hit is None):
                wrong = kill.wrong
                break
            if kill.hit is None:
                # Over before its kill: now it is known how long it takes, on a machine that may be busier than it was.
                whole = kill.seconds
                sandbox.close()
                sandbox = Sandbox(chosen, folder)
        ended = sandbox.run(real=real, limit=LIMIT)
        verdict = wrong or sandbox.judge(Disturbance(""), ended, before)
        if wrong is None and _is_done(sandbox, ended.status):
            verdict = Verdict("identical")
        if verdict.kind == "fallback":
            verdict = Verdict("identical")
        disturbance = Disturbance(", ".join(hits) or "over before each kill")
        return finish(trial, sandbox, disturbance, verdict, began, real=real, count=max(len(hits), not verdict.good))
    finally:
        sandbox.close()


@dataclass(frozen=True)
class _Kill:
    """A kill in words, None where the run was over before; how long it was at work; what is wrong with how it ended."""

    hit: str | None
    seconds: float
    wrong: Verdict | None
    status: int | None = None


def _kill(draw: random.Random, sandbox: Sandbox, real: bool, whole: float) -> _Kill:
    """Start a run that takes `whole` seconds, and kill it."""
    scene = sandbox.prepared.scene
    command = scene.commands[0] if scene.first else draw.choice(scene.commands)
    moment = draw.uniform(0.02, 1) * whole
    number = draw.choice(_SIGNALS)
    gently, everyone = number != signal.SIGKILL, draw.random() < 0.5
    running = Running(command, sandbox.folder, real)
    if running.wait(moment) is not None:
        ended = running.end(LIMIT)
        return _Kill(None, ended.seconds, None if ended.status == 0 else _wrong(ended), ended.status)
    running.send(number, everyone or (command.launched and not gently))
    ended = running.end(LIMIT)
    return _Kill(f"{number.name} after {moment:.2f} s", ended.seconds, _wrong(ended) if gently else None, ended.status)


def _is_done(sandbox: Sandbox, status: int | None) -> bool:
    """Whether a command refuses what it had finished when it was killed: it writes over nothing."""
    scene, expected = sandbox.prepared.scene, sandbox.prepared.expected
    refuses = scene.parts is not None or scene.name in (NEW, EARLIER)
    return status == 2 and refuses and results(sandbox.folder, scene.outputs) == expected


def _before_the_script(text: str) -> bool:
    """Whether Ctrl-C came before a script's first line was done, by which it is told what to do then."""
    frames = re.findall(r'File "([^"]+)", line \d+(?:, in .*)?(?:\n    (.*))?', text)
    return bool(frames) and all(
        file.startswith("<frozen") or file.endswith(("runpy.py", "site.py")) or _FIRST_LINE in line
        for file, line in frames
    )


_FIRST_LINE = "import nystromformer.interrupt"


def _wrong(ended: Ended) -> Verdict | None:
    if ended.hung:
        return Verdict("hang", "it did not stop")
    if ended.status in (130, -signal.SIGINT) and _before_the_script(ended.text):
        return None
    if TRACEBACK.search(ended.text) or ended.status not in _STOPPED:
        return Verdict("traceback", f"status {ended.status}: {ended.text[-300:]}")
    return None
