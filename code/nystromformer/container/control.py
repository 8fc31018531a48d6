"""Starting, stopping and going on: what the launcher does to containers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError, NotFound

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.jobs import Job, find_job, find_jobs
from nystromformer.container.scripts import COMMAND_LABEL, EXPERIMENT_LABEL
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError

_SETTLING_SECONDS = 60.0
"""In which a run is at work, or says why it cannot be: from a cold disk, importing torch alone takes long."""
_CONFLICT = 409
_STARTING_SECONDS = 10.0
"""In which a container that another launcher has made is started, too; one that lies there for longer was left over."""
_NOT_FOR_PODMAN = ',"\n'
_TRIES, _SECONDS_BETWEEN_TRIES = 5, 0.1


def start(engine: Engine, spec: RunSpec, to_make: Path | None = None) -> Job:
    """Make and start a container; one of that name that has ended is replaced.

    Args:
        to_make: a folder that it mounts and that is not there yet.

    Raises:
        UserError: the same work is under way, the image or a GPU driver is missing, … No container is left behind then.
    """
    refuse_mounts(engine, spec)
    with clear_errors(f"starting {spec.name}", spec.image):
        engine.api.inspect_image(spec.image)
        if to_make is not None:
            to_make.mkdir(parents=True, exist_ok=True)
        container = _make(engine, spec)
        try:
            engine.api.start(container)
        except BaseException:
            # KeyboardInterrupt, too: no container shall be left that neither runs nor has run.
            with suppress(NotFound):
                engine.api.remove_container(container, force=True)
            raise
    return _present(find_job(engine, container), spec.name)


def _make(engine: Engine, spec: RunSpec) -> str:
    """Make a container; returns its id. Other launchers may make it at the same time: where the engine says that
    something is not as it was looked at, it is looked at again.

    Raises:
        UserError: another one does the same work, or has the name.
        APIError: anything else that the engine says.
    """
    for tries_left in reversed(range(_TRIES)):
        jobs = _past_starting(engine, spec)
        refuse_active(spec, jobs)
        try:
            remove_ended(engine, spec, jobs)
            return spec.create(engine.api)
        except APIError as error:
            taken = name_taken(spec, error)
            if taken is None or not tries_left:
                raise taken or error from None
        time.sleep(_SECONDS_BETWEEN_TRIES)
    raise AssertionError("the last try returns or raises")


def _past_starting(engine: Engine, spec: RunSpec) -> list[Job]:
    """All containers of ours, once the one of this name is no longer about to be started."""
    deadline = time.monotonic() + _STARTING_SECONDS
    while True:
        jobs = find_jobs(engine)
        is_starting = any(job.name == spec.name and not job.is_active and not job.has_ended for job in jobs)
        if not is_starting or time.monotonic() >= deadline:
            return jobs
        time.sleep(_SECONDS_BETWEEN_TRIES)


def refuse_mounts(engine: Engine, spec: RunSpec) -> None:
    """Refuse folders of whose names Podman would make something else: it reads a mount as words between commas, and
    would mount `a` in place of `a,ro`.

    Raises:
        UserError: names the folder.
    """
    odd = [path for mount in spec.mounts for path in (mount.source, mount.target) if set(path) & set(_NOT_FOR_PODMAN)]
    if odd and engine.is_podman:
        raise UserError(
            f"{odd[0]!r}: Podman cannot mount a folder that has a comma, a double quote or a line's end in its name or "
            "in that of a folder above it. Rename that"
        )


def refuse_active(spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Refuse a container whose name or work another one has.

    Raises:
        UserError: names that container, and what to do with it.
    """
    refuse_name(spec, jobs)
    for job in jobs:
        if not is_rival(job, spec):
            continue
        if job.is_waiting:
            raise UserError(
                f"{job.folder.name}: waits in the queue already, as {job.name}. Take it out with `launch.py stop "
                f"{job.name}`, or let `launch.py queue` run it"
            )
        if job.is_active:
            raise UserError(
                f"{job.folder}: {job.command} is running already, in the container {job.name}. `launch.py logs -f "
                f"{job.name}` follows it, `launch.py stop {job.name}` ends it with a checkpoint"
            )


def refuse_name(spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Refuse a name that another experiment's container has.

    Raises:
        UserError: says which.
    """
    for job in jobs:
        if job.name == spec.name and job.home != spec.labels[EXPERIMENT_LABEL]:
            verb, command = ("end", "stop") if job.is_active else ("remove", "remove")
            raise UserError(
                f"{spec.name}: the engine has a container of that name, of {job.home}. Name this one with --name, or "
                f"{verb} that one with `launch.py {command} {job.name}`"
            )


def is_rival(job: Job, spec: RunSpec) -> bool:
    """Whether a container of `spec` would do a job's work."""
    return job.does_work_of(spec.labels[EXPERIMENT_LABEL], spec.labels[COMMAND_LABEL], spec.output)


def remove_ended(engine: Engine, spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Remove the container of an earlier start, whose files all lie in the experiment folder.

    Raises:
        UserError: the name belongs to another experiment's container.
        APIError: it has changed since it was looked at.
    """
    refuse_name(spec, jobs)
    for job in jobs:
        if job.name == spec.name and not job.is_active:
            with suppress(NotFound):
                engine.api.remove_container(job.id)


def settle(engine: Engine, job: Job, has_begun: Callable[[Job], bool]) -> Job:
    """Wait until a job's work is under way or it has ended, a minute at most; returns how the job is then."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    while job.is_active and not has_begun(job) and time.monotonic() < deadline:
        time.sleep(0.5)
        job = _present(find_job(engine, job.id), job.name)
    return job


def stop(engine: Engine, job: Job, seconds: int | None = None) -> Job | None:
    """SIGTERM, upon which a run writes a checkpoint, and a kill after `seconds`; returns how the job ended.

    None where the engine removed it (`docker run --rm`).

    Raises:
        UserError: the engine refuses.
    """
    with clear_errors(f"stopping {job.name}"):
        engine.api.stop(job.id, timeout=job.stop_seconds if seconds is None else seconds)
    return find_job(engine, job.id)


def kill(engine: Engine, job: Job) -> Job | None:
    """SIGKILL: the run loses what it did since its last checkpoint. Returns how the job ended, or
    None where the engine removed it (`docker run --rm`).

    Raises:
        UserError: the engine refuses.
    """
    with clear_errors(f"killing {job.name}"):
        engine.api.kill(job.id)
        with suppress(NotFound):
            engine.api.wait(job.id)
    return find_job(engine, job.id)


def resume(engine: Engine, job: Job) -> Job:
    """Start a container again that has ended: the run goes on from its last checkpoint.

    Raises:
        UserError: another one does its work; the engine refuses.
    """
    for other in find_jobs(engine):
        if other.is_active and other.does_work_of(job.home, job.command, job.output):
            raise UserError(f"{job.name}: the container {other.name} does its work already")
    with clear_errors(f"resuming {job.name}"):
        engine.api.start(job.id)
    return _present(find_job(engine, job.id), job.name)


def remove(engine: Engine, job: Job) -> None:
    """Remove a container that does not run, if nobody else just did. Checkpoints and logs lie in the experiment
    folder, and stay.

    Raises:
        UserError: the engine refuses, as of one that runs.
    """
    with clear_errors(f"removing {job.name}"), suppress(NotFound):
        engine.api.remove_container(job.id)


def newest_checkpoint(job: Job) -> Path | None:
    """The checkpoint written last below the experiment folder, where this machine sees it."""
    checkpoints = [path for path in job.folder.rglob("cp-*.cp") if path.is_file()]
    return max(checkpoints, key=lambda path: path.stat().st_mtime, default=None)


def _present(job: Job | None, name: str) -> Job:
    if job is None:
        raise UserError(f"{name}: somebody else removed the container")
    return job


def name_taken(spec: RunSpec, error: APIError) -> UserError | None:
    """What to say of an error whose reason is that another container has the name, if it is none of ours; None of
    others."""
    said = str(error.explanation or "").lower()
    if error.status_code == _CONFLICT or "already in use" in said:
        return UserError(
            f"{spec.name}: the engine has a container of that name, which is not one of this project's experiments. "
            "Name this one with --name"
        )
    return None
