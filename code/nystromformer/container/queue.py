"""Several experiments over the GPUs at hand, one after another on each.

All that is known of the queue lies in the engine: an experiment that waits is a container that was made but not
started, whose labels hold what to run (`RunSpec`), its place and the GPUs that it may have. Its turn come, a container
with its GPUs is made and started in its place. So a launcher that dies loses nothing, and the next one goes on; two at
a time do not harm each other, because a container's name is there once, and of two that took one GPU the later gives
way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from docker.errors import APIError, NotFound
from docker.types import DeviceRequest
from pydantic import TypeAdapter

from nystromformer.container.control import is_conflict, refuse_active, refuse_mounts, remove, remove_ended
from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.jobs import QUEUE_LABEL, WAITING, Job, describe, find_job, find_jobs
from nystromformer.container.scripts import GPUS_LABEL, LABEL
from nystromformer.container.spec import RunSpec, gpu_ids
from nystromformer.errors import UserError

_SPEC, _PLACE = LABEL + "spec", LABEL + "place"
_TAKEN = "taken"
_SPECS = TypeAdapter(RunSpec)
_OR = " or "
"""Between the GPUs, of which one that waits gets one group."""
_SECONDS_BETWEEN_LOOKS = 1.0


def all_gpus(engine: Engine, image: str) -> str:
    """The GPUs of the engine's machine, as a container sees them that gets them all.

    Raises:
        UserError: there are none, or the engine cannot give them.
    """
    with clear_errors("asking for GPUs", image):
        # docker-py's own `run` would fetch a missing image from the network, and leave what could not be started.
        engine.api.inspect_image(image)
        container = engine.client.containers.create(
            image,
            ["/bin/bash", "-c", "ls /dev"],
            network_mode="host",
            device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])],
        )
        try:
            container.start()
            container.wait()
            listed = container.logs(stderr=False)
        finally:
            container.remove(force=True)
    ids = sorted(re.findall(r"^nvidia(\d+)$", listed.decode(), re.MULTILINE), key=int)
    if not ids:
        raise UserError("--gpus all: the engine gives containers no GPU; name them (--gpus 0,1), or use --gpus none")
    return ",".join(ids)


def make_slots(gpus: str, each: int) -> list[str]:
    """What one experiment at a time gets: `each` GPUs; without GPUs, one slot.

    Raises:
        UserError: the GPUs cannot be divided so.
    """
    if gpus == "none":
        return [gpus]
    ids = gpu_ids(gpus)
    if not ids or len(ids) % each:
        raise UserError(
            f"--gpus {gpus} --gpus_each {each}: expected the numbers of GPUs that can be divided into groups of {each}"
        )
    return [",".join(ids[i : i + each]) for i in range(0, len(ids), each)]


def enqueue(engine: Engine, specs: Sequence[RunSpec], slots: Sequence[str]) -> None:
    """Put containers at the queue's end, all or none. Each gets the GPUs of one slot.

    Raises:
        UserError: one of them runs or waits already, or the engine refuses.
    """
    jobs = find_jobs(engine)
    for index, spec in enumerate(specs):
        refuse_mounts(engine, spec)
        refuse_active(spec, jobs)
        if any(spec.name == other.name for other in specs[:index]):
            raise UserError(f"{spec.name}: named twice; an experiment can be in the queue once for each command")
    with clear_errors("queueing", specs[0].options.image):
        engine.api.inspect_image(specs[0].options.image)
    now, created = time.time_ns(), []
    try:
        for index, spec in enumerate(specs):
            labels = {
                QUEUE_LABEL: WAITING,
                _SPEC: _SPECS.dump_json(spec).decode(),
                _PLACE: f"{now:020d}-{index:04d}",
                GPUS_LABEL: _OR.join(slots),
            }
            waiting = replace(spec, labels=labels, name=f"{spec.name}.{WAITING}")
            with clear_errors(f"queueing {spec.name}", spec.options.image):
                try:
                    created.append(waiting.create(engine.api))
                except APIError:
                    refuse_active(spec, find_jobs(engine))  # another launcher may have been faster
                    raise
    except BaseException:
        for each in created:
            engine.api.remove_container(each, force=True)
        raise


def drive(
    engine: Engine, say: Callable[[str], None], seconds_between_looks: float = _SECONDS_BETWEEN_LOOKS
) -> list[Job]:
    """Start what waits as GPUs become free, until nothing waits and nothing of the queue runs; returns the jobs of the
    queue that were seen to end.

    Raises:
        UserError: a container cannot be started; it keeps its place.
    """
    running: dict[str, Job] = {}
    ended: list[Job] = []

    def say_running(job: Job) -> None:
        # Its end is expected from now on, which may come before it is looked at again.
        say(f"{job.name}: running" + (f" on GPU {job.gpus}" if job.gpus != "none" else ""))
        running[job.id] = job

    while True:
        jobs = find_jobs(engine)
        waiting, taken, active = _divide(jobs)
        for job in active:
            if job.id not in running:
                say_running(job)
        now = {job.id: job for job in jobs}
        for job in [now.get(identity, job) for identity, job in running.items()]:
            if job.id not in now or job.has_ended:
                say(f"{job.name}: {job.state if job.id in now else 'somebody removed it'}")
                ended += [job] if job.id in now else []
                del running[job.id]
        if not waiting and not taken and not active:
            return ended
        for job in taken:
            # Made by a launcher that died before it started it, or is just about to. Should both start it, no harm is
            # done: a run that is over finds nothing left to do.
            if _begin(engine, job):
                say_running(job)
        if taken:
            jobs = find_jobs(engine)
        for job in sorted(waiting, key=lambda each: each.labels.get(_PLACE, "")):
            started = _give_turn(engine, job, jobs)
            if started is not None:
                say_running(started)
                jobs = find_jobs(engine)
        time.sleep(seconds_between_looks)


def refuse_resuming(job: Job, jobs: Iterable[Job]) -> None:
    """Refuse to start a job again by hand whose work another one does, or on a GPU that the queue has given to another,
    or may give to one that waits."""
    for other in jobs:
        if other.id != job.id and other.is_active and other.does_work_of(job):
            raise UserError(f"{job.name}: the container {other.name} already does this work")
        if other.id == job.id or QUEUE_LABEL not in other.labels:
            continue
        if other.is_waiting and any(_shares(job.gpus, slot) for slot in other.gpus.split(_OR)):
            raise UserError(
                f"{job.name}: GPU {job.gpus} is reserved for {other.name}, which waits in the queue. `launch.py "
                f"queue` runs that one first, `launch.py stop {other.name}` takes it out of the queue"
            )
        if (other.is_active or _is_taken(other)) and _shares(job.gpus, other.gpus):
            raise UserError(
                f"{job.name}: the queue has given GPU {other.gpus} to {other.name}. Resume this one when that one has "
                f"ended, or end that one with `launch.py stop {other.name}`"
            )


def queue_length(engine: Engine) -> tuple[int, int]:
    """How many wait, and how many of the queue run."""
    waiting, taken, active = _divide(find_jobs(engine))
    return len(waiting), len(taken) + len(active)


def _divide(jobs: Iterable[Job]) -> tuple[list[Job], list[Job], list[Job]]:
    """Those that wait, those that were made with GPUs and not started, those of the queue that run."""
    waiting, taken = [job for job in jobs if job.is_waiting], [job for job in jobs if _is_taken(job)]
    return waiting, taken, [job for job in jobs if job.is_active and QUEUE_LABEL in job.labels]


def _give_turn(engine: Engine, job: Job, jobs: Sequence[Job]) -> Job | None:
    """Make and start the container of a job that waits, if there is a slot for it; returns it if this launcher did."""
    spec, place = _read_place(job)
    own = [other for other in jobs if other.name == spec.name and other.labels.get(_PLACE) == place]
    if own:
        # Another launcher, or one that died before it got here, gave it its turn.
        if own[0].status != "created":
            remove(engine, job)
        return None
    if any(other.is_active and (other.name == spec.name or other.does_work_of(spec)) for other in jobs):
        return None  # started by hand in the meantime: its turn comes when that has ended
    # One that somebody made and did not start, such as a docker line that failed, may lie there for ever.
    busy = [other for other in jobs if other.is_active or _is_taken(other)]
    slot = next((each for each in job.gpus.split(_OR) if not _overlaps(each, busy)), None)
    if slot is None:
        return None
    spec = replace(spec, labels={QUEUE_LABEL: _TAKEN, _PLACE: place}, gpus=slot)
    with clear_errors(f"starting {spec.name}", spec.options.image):
        try:
            remove_ended(engine, spec, jobs)
            created = spec.create(engine.api)
        except APIError as error:
            if is_conflict(error) and not _is_strangers(engine, spec.name):
                return None  # another launcher was faster; it may have given way since
            raise
    taken = find_job(engine, created)
    return taken if taken is not None and _begin(engine, taken) else None


def _is_strangers(engine: Engine, name: str) -> bool:
    """Whether a container has this name that is none of ours."""
    try:
        return describe(engine.api.inspect_container(name)) is None
    except NotFound:
        return False


def _read_place(job: Job) -> tuple[RunSpec, str]:
    """What a container that waits is to run, and its place."""
    try:
        return _SPECS.validate_json(job.labels[_SPEC]), job.labels[_PLACE]
    except (KeyError, ValueError, UserError):
        raise UserError(
            f"{job.name}: waits in the queue, and its labels do not say what to run. Take it out with `launch.py stop "
            f"{job.name}`, and queue the experiment again"
        ) from None


def _begin(engine: Engine, job: Job) -> bool:
    """Start a container that has its GPUs, unless an earlier one has them too, and take its placeholder away; returns
    whether it was started."""
    jobs = find_jobs(engine)
    if not any(_is_taken(other) for other in jobs if other.id == job.id):
        return False  # another launcher started it, or took it away
    rivals = [other for other in jobs if other.id != job.id]
    taken = [other for other in rivals if _is_taken(other) and (other.created, other.id) < (job.created, job.id)]
    earlier = [other for other in rivals if other.is_active] + taken
    with clear_errors(f"starting {job.name}"):
        if _overlaps(job.gpus, earlier):
            with suppress(NotFound):
                engine.api.remove_container(job.id)
            return False
        try:
            engine.api.start(job.id)
        except BaseException as error:
            if isinstance(error, NotFound) and find_job(engine, job.id) is None:
                return False  # another launcher took it away
            engine.api.remove_container(job.id, force=True)
            raise
    for other in rivals:
        if other.is_waiting and other.labels.get(_PLACE) == job.labels.get(_PLACE):
            remove(engine, other)
    return True


def _is_taken(job: Job) -> bool:
    """Whether it was made with its GPUs and is about to start."""
    return job.status == "created" and job.labels.get(QUEUE_LABEL) == _TAKEN


def _overlaps(slot: str, busy: Sequence[Job]) -> bool:
    """Whether one of the jobs has a GPU of the slot; without GPUs, whether one of the queue's runs without any."""
    if slot == "none":
        return any(job.gpus == "none" and QUEUE_LABEL in job.labels for job in busy)
    return any(_shares(slot, job.gpus) for job in busy)


def _shares(one: str, other: str) -> bool:
    """Whether two containers' GPUs, each "all", "none" or ids, have one in common."""
    if "all" in (one, other):
        return "none" not in (one, other)
    return not set(one.split(",")).isdisjoint(other.split(",")) and one != "none"
