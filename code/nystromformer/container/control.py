"""Starting containers, whatever other launchers do at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError, NotFound

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.jobs import Job, find_job, find_jobs
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError

_SETTLING_SECONDS = 60.0
"""In which a run is at work, or says why it cannot be: from a cold disk, importing torch alone takes long."""
_STARTING_SECONDS = 10.0
"""In which a container that another launcher has made is started, too; one that lies there for longer was left over."""
_TRIES, _SECONDS_BETWEEN_TRIES = 5, 0.1


def start(engine: Engine, spec: RunSpec) -> Job:
    """Make and start a container; one of that name that has ended is replaced.

    Raises:
        UserError: the same work is under way, the image or a GPU driver is missing, … No container is left behind then.
    """
    refuse_mounts(engine, spec)
    with clear_errors(f"starting {spec.name}", spec.options.image):
        engine.api.inspect_image(spec.options.image)
        if spec.to_make is not None:
            Path(spec.to_make).mkdir(parents=True, exist_ok=True)
        container = _make(engine, spec)
        try:
            engine.api.start(container)
        except BaseException:
            # KeyboardInterrupt, too: no container shall be left that neither runs nor has run.
            with suppress(NotFound):
                engine.api.remove_container(container, force=True)
            raise
    return find_present(engine, container, spec.name)


def _make(engine: Engine, spec: RunSpec) -> str:
    """Make a container; returns its id. Other launchers may make it at the same time: where the engine says that
    something is not as it was looked at, it is looked at again."""
    tries_left = _TRIES
    while True:
        jobs = _wait_past_starting(engine, spec)
        refuse_active(spec, jobs)
        try:
            remove_ended(engine, spec, jobs)
            return spec.create(engine.api)
        except APIError as error:
            tries_left -= 1
            if not is_conflict(error) or not tries_left:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _wait_past_starting(engine: Engine, spec: RunSpec) -> list[Job]:
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
    would mount `a` in place of `a,ro`."""
    odd = [path for mount in spec.mounts for path in (mount.source, mount.target) if set(path) & set(',"\n')]
    if odd and engine.is_podman:
        raise UserError(
            f"{odd[0]!r}: Podman cannot mount a folder that has a comma, a double quote or a line break in its name "
            "or in that of a folder above it. Rename that folder"
        )


def refuse_active(spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Refuse a container whose name another experiment has, or whose work another container does."""
    refuse_name(spec, jobs)
    for job in jobs:
        if job.is_waiting and job.does_work_of(spec):
            raise UserError(
                f"{job.folder.name}: waits in the queue already, as {job.name}. Take it out with `launch.py stop "
                f"{job.name}`, or let `launch.py queue` run it"
            )
        if job.is_active and job.does_work_of(spec):
            raise UserError(
                f"{job.folder}: {job.command} is running already, in the container {job.name}. `launch.py logs -f "
                f"{job.name}` follows it, `launch.py stop {job.name}` ends it with a checkpoint"
            )


def refuse_name(spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Refuse a name that another experiment's container has."""
    for job in jobs:
        if job.name == spec.name and job.home != spec.home:
            verb, command = ("end", "stop") if job.is_active else ("remove", "remove")
            raise UserError(
                f"{spec.name}: the engine already has a container of that name, for {job.home}. Give this one another "
                f"name with --name, or {verb} that one with `launch.py {command} {job.name}`"
            )


def remove_ended(engine: Engine, spec: RunSpec, jobs: Sequence[Job]) -> None:
    """Remove the container of an earlier start, whose files all lie in the experiment folder."""
    refuse_name(spec, jobs)
    for job in jobs:
        if job.name == spec.name and not job.is_active:
            with suppress(NotFound):
                engine.api.remove_container(job.id)


def is_conflict(error: APIError) -> bool:
    """Whether the engine refuses because another container has the name, or is about to be removed."""
    return error.status_code == 409 or "already in use" in str(error.explanation).lower()


def settle(engine: Engine, job: Job, has_begun: Callable[[Job], bool]) -> Job:
    """Wait until a job's work is under way or it has ended, a minute at most; returns how the job is then."""
    deadline = time.monotonic() + _SETTLING_SECONDS
    while job.is_active and not has_begun(job) and time.monotonic() < deadline:
        time.sleep(0.5)
        job = find_present(engine, job.id, job.name)
    return job


def remove(engine: Engine, job: Job) -> None:
    """Remove a container that does not run, if nobody else just did. Checkpoints and logs lie in the experiment
    folder, and stay."""
    with clear_errors(f"removing {job.name}"), suppress(NotFound):
        engine.api.remove_container(job.id)


def find_present(engine: Engine, container: str, name: str) -> Job:
    """The job of a container, which nobody may have removed."""
    job = find_job(engine, container)
    if job is None:
        raise UserError(f"{name}: somebody else removed the container")
    return job
