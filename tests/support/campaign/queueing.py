"""Trials of the launcher's queue, against an engine that only says that it runs containers.

Two launchers at once, launchers that are killed, places in the queue that nobody can read, and a run that is resumed on
a GPU that one waits for. Whatever happens, each experiment that was queued runs to its end, no GPU has two, and nothing
of the experiments' folders changes.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fake_engine import FakeEngine, connected, fake_engine

from campaign import trees
from campaign.commands import Command, Ended, Running, end_with_parent
from campaign.scenes import Scene
from campaign.trial import LIMIT, Attempt, Outcome
from campaign.verdicts import Verdict, crash
from campaign.world import PRETRAIN
from nystromformer.container import control
from nystromformer.container import queue as queue_module
from nystromformer.container.jobs import QUEUE_LABEL, WAITING, find_job, find_jobs
from nystromformer.container.scripts import GPUS_LABEL, LABEL

QUEUED = Scene("queued", (PRETRAIN,), ("model", "dataset"), ("model/model",), ("model/model",))
"""An experiment that was not begun; the trials copy it."""
_NAMES = ("a", "b", "c", "d")
_STOPPED = (0, 2, 130, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT)
_SPOILT = ("", "{", "[]", "null", '{"restart": 3}', "[" * 5000)


def queue(attempt: Attempt) -> Outcome:
    """One of the plots."""
    plot = attempt.draw.choice(_PLOTS)
    sandbox = attempt.open(attempt.prepared[QUEUED.name])
    for name in (*_NAMES, "mine"):
        (sandbox.folder / name).mkdir()
        shutil.copy2(sandbox.folder / "model" / "config.json", sandbox.folder / name)
    before = trees.listing(sandbox.folder)
    try:
        with _engine(attempt.draw, sandbox.folder) as (url, report):
            launchers = _Launchers(sandbox.folder, url)
            plot(attempt.draw, launchers)
            launchers.end(launchers.begin("queue"))
        _judge(json.loads(report.read_text()), launchers.queued)
        if trees.listing(sandbox.folder) != before:
            raise _EndedBadly("lost", "the experiments' folders are not as they were")
        verdict = Verdict("clear error" if launchers.refused else "identical")
    except _EndedBadly as error:
        verdict = Verdict(*error.args)
    return attempt.outcome(sandbox, plot.__name__.strip("_").replace("_", " "), verdict, real=False)


class _EndedBadly(Exception):
    """The arguments of a verdict."""


def _judge(report: Mapping[str, Sequence[str]], queued: set[str]) -> None:
    if report["complaints"]:
        raise _EndedBadly("silent", f"two on one GPU: {report['complaints'][0]}")
    if report["waiting"] or queued - set(report["done"]):
        raise _EndedBadly("lost", f"in the queue for ever: {report['waiting'] or sorted(queued)}")


class _Launchers:
    """Commands of the launcher, one after another or at once, and what becomes of what they queue."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.queued: set[str] = set()
        self.refused = False
        self._number = 0

    def begin(self, *words: str) -> Running:
        self._number += 1
        output = self.folder.with_name(f"{self.folder.name}-{self._number}")
        return Running(
            Command("code/launch.py", words), self.folder, hook=partial(_be_impatient, self.url), output=output
        )

    def put(self, names: Sequence[str], gpus: str) -> Running:
        """A launcher that queues experiments."""
        return self.begin("queue", *names, "--gpus", gpus, "--dataset", "dataset")

    def end(self, running: Running, statuses: Sequence[int] = (0,)) -> Ended:
        """Wait for a launcher, which has to end with one of these."""
        ended = running.end(LIMIT)
        if crashed := crash(ended, _STOPPED):
            raise _EndedBadly(crashed.kind, crashed.why)
        if ended.status not in statuses:
            raise _EndedBadly("unclear", f"status {ended.status}: {ended.text[-300:]}")
        for line in ended.text.splitlines():
            if line.startswith("queued: "):
                self.queued |= set(line.removeprefix("queued: ").split(", "))
        return ended

    def refuse(self, running: Running, names: Sequence[str]) -> None:
        """Wait for a launcher that has to be refused with one message, which has each of the names."""
        stderr = self.end(running, (2,)).stderr
        self.refused = True
        if stderr.count("error: ") != 1 or not all(name in stderr for name in names):
            raise _EndedBadly("unclear", stderr[-300:])


def _two_at_once(draw: random.Random, launchers: _Launchers) -> None:
    gpus = draw.choice(("0", "0,1", "none"))
    for running in [launchers.put(names, gpus) for names in (_NAMES[:2], _NAMES[2:])]:
        launchers.end(running)


def _the_same_twice(draw: random.Random, launchers: _Launchers) -> None:
    """One of them is refused, or both are served one after the other; never is one half queued."""
    for running in [launchers.put(_NAMES[:2], "0,1") for _ in range(2)]:
        launchers.end(running, (0, 2))


def _killed(draw: random.Random, launchers: _Launchers) -> None:
    for names in (_NAMES[:2], _NAMES[2:]):
        running = launchers.put(names, draw.choice(("0", "0,1")))
        running.wait(draw.uniform(0.05, 1.5))
        running.send(draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)))
        launchers.end(running, _STOPPED)


def _a_spoilt_place(draw: random.Random, launchers: _Launchers) -> None:
    """Somebody's container says that it waits, and not what for."""
    api = connected(FakeEngine(url=launchers.url)).api
    labels = {QUEUE_LABEL: WAITING, GPUS_LABEL: "0", LABEL + draw.choice(("spec", "slots")): draw.choice(_SPOILT)}
    command = ["/bin/bash", "-c", "python3 /code/run_pretrain.py >> /model/pretrain.txt 2>&1"]
    host = api.create_host_config(binds=[f"{launchers.folder}/mine:/model"])
    mounts = [{"Source": f"{launchers.folder}/mine", "Target": "/model"}]
    api.create_container("nystromformer", command, name="spoilt", labels=labels, host_config={**host, "Mounts": mounts})
    api.close()
    launchers.refuse(launchers.put(_NAMES[:2], "0"), ("spoilt", "launch.py stop"))
    launchers.end(launchers.begin("stop", "spoilt"))


def _a_promised_gpu(draw: random.Random, launchers: _Launchers) -> None:
    """A launcher is killed while experiments wait; then a run is resumed that had their GPU."""
    running = launchers.put(_NAMES, "0")
    running.wait_for("queued: ", LIMIT)
    running.send(signal.SIGKILL)
    launchers.end(running, _STOPPED)
    engine = connected(FakeEngine(url=launchers.url))
    waits = any(job.is_waiting for job in find_jobs(engine))
    engine.api.close()
    if waits:
        launchers.refuse(launchers.begin("resume", "mine-pretrain"), ("mine-pretrain", "GPU 0"))


_PLOTS = (_two_at_once, _the_same_twice, _killed, _a_spoilt_place, _a_promised_gpu)


def _be_impatient(url: str) -> None:
    os.environ["DOCKER_HOST"] = url
    queue_module.drive.__defaults__ = (0.02,)
    control._STARTING_SECONDS = 0.0
    control.settle = lambda engine, job, *more: find_job(engine, job.id) or job  # type: ignore[assignment]


@contextmanager
def _engine(draw: random.Random, folder: Path) -> Iterator[tuple[str, Path]]:
    """An engine in a process of its own, as forks of one with threads are not safe: its address, and its report."""
    report, plans = folder.with_name(f"{folder.name}-engine.json"), {name: draw.randint(1, 6) for name in _NAMES}
    reading, telling = os.pipe()
    ending, end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(end)
            end_with_parent()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # launchers that are killed break their connections
            _run_engine(plans, folder, telling, ending, report)
        finally:
            os._exit(0)
    os.close(telling)
    os.close(ending)
    try:
        with os.fdopen(reading) as address:
            yield address.readline().strip(), report
    finally:
        os.close(end)
        os.waitpid(pid, 0)


def _run_engine(plans: Mapping[str, int], folder: Path, telling: int, ending: int, report: Path) -> None:
    with fake_engine() as engine:
        engine.patience = 1 << 30
        engine.plans = {f"{name}-pretrain": (looks, 0) for name, looks in plans.items()}
        engine.add("mine-pretrain", folder / "mine", status="exited", exit_code=143, labels={GPUS_LABEL: "0"})
        complaints = engine.watch_gpus()
        os.write(telling, f"{engine.url}\n".encode())
        os.read(ending, 1)
        states = {name: engine.state(name) for name in engine.names}
        done = [name for name, state in states.items() if state == "exited"]
        waiting = [name for name in states if name.endswith(f".{WAITING}")]
        report.write_text(json.dumps({"complaints": complaints, "done": done, "waiting": waiting}))
