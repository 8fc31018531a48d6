"""Trials of kills: a run is killed at random moments and started again until it is done."""

import random
import re
import signal

from campaign.commands import Ended, Running
from campaign.results import results
from campaign.scenes import EARLIER, NEW
from campaign.trial import LIMIT, Attempt, Outcome, Sandbox
from campaign.verdicts import Disturbance, Verdict, crash

_IMPORTS = 2.5
"""Seconds that a real process takes until it begins."""
_REAL_OF = 3
"""One of so many trials is of real processes."""
_TRIES = 3
_SIGNALS = (*(signal.SIGKILL,) * 6, signal.SIGTERM, signal.SIGINT)
_STOPPED = (0, *(sign for number in (signal.SIGTERM, signal.SIGINT) for sign in (-number, 128 + number)))
_FIRST_LINE = "import nystromformer.command_line.interrupt"


def kills(attempt: Attempt) -> Outcome:
    """One to four kills of a run, by SIGKILL or SIGTERM, to its first process or all."""
    chosen = attempt.choose(lambda scene: not scene.scene.name.endswith("-finished"))
    launched = chosen.scene.commands[0].launched
    real = launched or attempt.trial.number % _REAL_OF == 0
    wanted = 3 if real else attempt.draw.randint(1, 4)
    whole = chosen.seconds + (_IMPORTS if real and not launched else 0)
    sandbox = attempt.open(chosen)
    hits: list[str] = []
    wrong: Verdict | None = None
    for _ in range(_TRIES * wanted):
        sandbox.look()
        hit, ended, wrong = _run_and_kill(attempt.draw, sandbox, real, whole)
        if hit:
            hits.append(hit)
        if wrong or len(hits) == wanted or (hits and not hit):
            break
        if not hit:
            # Over before its kill: now it is known how long it takes, on a machine that may be busier than it was.
            whole = ended.seconds
            sandbox = attempt.open(chosen)
    if wrong is None:
        ended = sandbox.run(real=real)
        wrong = sandbox.judge(Disturbance(""), ended, chosen.before)
        if wrong.kind == "fallback" or _has_finished(sandbox, ended):
            wrong = Verdict("identical")
    what = ", ".join(hits) or "over before each kill"
    return attempt.outcome(sandbox, what, wrong, real=real, count=max(len(hits), not wrong.good))


def _run_and_kill(
    draw: random.Random, sandbox: Sandbox, real: bool, whole: float
) -> tuple[str | None, Ended, Verdict | None]:
    """Start a run that takes `whole` seconds, and kill it.

    Returns:
        the kill in words, None where the run was over before; how it ended; what is wrong with that.
    """
    scene = sandbox.prepared.scene
    command = scene.commands[0] if scene.first else draw.choice(scene.commands)
    moment = draw.uniform(0.02, 1) * whole
    number, everyone = draw.choice(_SIGNALS), draw.random() < 0.5
    running = Running(command, sandbox.folder, real, output=sandbox.output)
    hit = None
    if running.wait(moment) is None:
        hit = f"{number.name} after {moment:.2f} s"
        running.send(number, everyone or (command.launched and number == signal.SIGKILL))
    ended = running.end(LIMIT)
    if sandbox.fell():
        return hit, ended, Verdict("lost", f"steps that had been saved, by {hit}")
    early = ended.status in (130, -signal.SIGINT) and is_before_the_script(ended.text)
    if early or (hit and number == signal.SIGKILL) or _has_finished(sandbox, ended):
        return hit, ended, None
    return hit, ended, crash(ended, _STOPPED if hit else (0,))


def _has_finished(sandbox: Sandbox, ended: Ended) -> bool:
    """Whether a command refuses what it had finished when it was killed: it writes over nothing."""
    scene, expected = sandbox.prepared.scene, sandbox.prepared.expected
    refuses = scene.parts is not None or scene.name in (NEW, EARLIER)
    return ended.status == 2 and refuses and results(sandbox.folder, scene.outputs) == expected


def is_before_the_script(text: str) -> bool:
    """Whether Ctrl-C came before a script's first line was done, by which it is told what to do then."""
    frames = re.findall(r'File "([^"]+)", line \d+(?:, in .*)?(?:\n    (.*))?', text)
    return bool(frames) and all(
        file.startswith("<frozen") or file.endswith(("runpy.py", "site.py")) or _FIRST_LINE in line
        for file, line in frames
    )
