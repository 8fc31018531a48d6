"""What the engine holds of ours: containers that run this project's scripts, however they were started."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from docker.errors import APIError, NotFound

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.scripts import COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL, LABEL, SCRIPTS
from nystromformer.container.spec import RunSpec
from nystromformer.errors import UserError

QUEUE_LABEL, WAITING = LABEL + "queue", "waiting"
"""On the containers of a queue: `waiting` on one that only keeps a place in it."""

_ACTIVE = {"running", "restarting", "paused", "stopping"}
"""`stopping` is Podman's word for the time from SIGTERM to the end."""
_FOLDERS = ("/model", "/data-preprocessing")
_COMMANDS = {script.file: script.command for script in SCRIPTS.values()}
_SCRIPT = re.compile(r"/code/(run_\w+\.py)|/data-preprocessing/(\S+\.py)")
# Of stdout; `2>&1` and the like name no file, and a `>` in a flag's value comes before.
_OUTPUT = re.compile(r"""(?<![2&>])>>?\s*('/[^']+'|"/[^"]+"|/\S+)""")


@dataclass(frozen=True)
class Job:
    """A container of ours, as the engine describes it.

    Args:
        command: pretrain, glue, …, or preprocess with what it makes.
        home: the folder that it writes into, on the engine's machine: the experiment's, or data-preprocessing.
        home_target: what that folder is in the container.
        output: file in the container that stdout and stderr go to; None where they go to the engine.
        status: the engine's word: created, running, exited, …
        created, started: seconds since 1970; None where it never started.
        health: of the image's check: healthy, unhealthy, starting, or nothing.
        gpus: all, none or ids; of one that waits, groups of ids with "or" between them.
        stop_seconds: from a stop to a kill.
        restarts: how often the engine started it again by its restart policy.
        fault: why the engine could not start it, in its own words.
    """

    id: str
    name: str
    command: str
    home: str
    home_target: str
    output: str | None
    status: str
    exit_code: int
    created: float
    started: float | None
    health: str
    gpus: str
    out_of_memory: bool
    stop_seconds: int
    labels: dict[str, str]
    restarts: int = 0
    fault: str = ""

    @property
    def is_active(self) -> bool:
        return self.status in _ACTIVE

    @property
    def is_waiting(self) -> bool:
        """Whether it only keeps a place in the queue."""
        return self.labels.get(QUEUE_LABEL) == WAITING

    @property
    def has_ended(self) -> bool:
        return self.status in ("exited", "stopped", "dead")

    @property
    def folder(self) -> Path:
        return Path(self.home)

    @property
    def output_path(self) -> Path | None:
        """The log on the engine's machine."""
        inside = PurePosixPath(self.output or "")
        return self.folder / inside.relative_to(self.home_target) if inside.is_relative_to(self.home_target) else None

    def does_work_of(self, other: Job | RunSpec) -> bool:
        """Whether it writes what the other one does: the same log, or an experiment's checkpoints."""
        same_log = self.output is not None and self.output == other.output
        return self.home == other.home and (same_log or self.command == other.command == "pretrain")

    @property
    def state(self) -> str:
        """For people."""
        if self.is_waiting:
            return "waiting"
        if self.status == "running" and self.health == "unhealthy":
            return "silent"
        if not self.has_ended:
            return self.status
        if self.out_of_memory:
            return "out of memory"
        return {0: "done", 130: "stopped", 143: "stopped", 137: "killed"}.get(
            self.exit_code, f"failed ({self.exit_code})"
        )


def find_jobs(engine: Engine) -> list[Job]:
    """All containers of ours, the newest last."""
    with clear_errors("listing containers"):
        listed = engine.api.containers(all=True)
    jobs = [job for job in (find_job(engine, each["Id"]) for each in listed) if job is not None]
    return sorted(jobs, key=lambda job: (job.created, job.id))


def find_job(engine: Engine, container: str) -> Job | None:
    """The job of a container; None where it is gone, or not of ours."""
    with clear_errors("looking at a container"):
        try:
            return describe(engine.api.inspect_container(container))
        except APIError as error:
            # Podman has another status for one that goes just now.
            if isinstance(error, NotFound) or "no such container" in str(error.explanation).lower():
                return None
            raise


def describe(detail: dict[str, Any]) -> Job | None:
    """The job of what `docker inspect` says; None where it runs none of our scripts."""
    config, state = detail["Config"], detail["State"]
    labels = dict(config.get("Labels") or {})
    text = " ".join([*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])])
    script = _SCRIPT.search(text)
    mounts = {mount["Destination"]: mount["Source"] for mount in detail.get("Mounts") or []}
    target = next((each for each in _FOLDERS if each in mounts), None)
    if script is None or target is None:
        return None
    # Scripts that the launcher does not start, such as run_report.py, go by their file's name.
    by_hand = f"preprocess {script[2]}" if script[1] is None else _COMMANDS.get(script[1], script[1])
    outputs = _OUTPUT.findall(text)
    requests = (detail.get("HostConfig") or {}).get("DeviceRequests") or []
    return Job(
        id=detail["Id"],
        name=detail["Name"].lstrip("/"),
        command=labels.get(COMMAND_LABEL) or by_hand,
        home=labels.get(EXPERIMENT_LABEL) or mounts[target],
        home_target=target,
        output=outputs[-1].strip("'\"") if outputs else None,
        status=state["Status"],
        exit_code=int(state.get("ExitCode") or 0),
        created=datetime.fromisoformat(detail["Created"]).timestamp(),
        started=_start(state.get("StartedAt")),
        health=(state.get("Health") or {}).get("Status") or "",
        gpus=labels.get(GPUS_LABEL) or _requested_gpus(requests),
        out_of_memory=bool(state.get("OOMKilled")),
        stop_seconds=int(config.get("StopTimeout") or 10),
        labels=labels,
        restarts=int(detail.get("RestartCount") or 0),
        fault=str(state.get("Error") or "").strip(),
    )


def select_jobs(jobs: Sequence[Job], name: str) -> list[Job]:
    """The jobs that users name by container, or else by experiment folder or its name.

    Raises:
        UserError: a name that is none of these, with those that are.
    """
    folder = str(Path(name).resolve())
    named = [job for job in jobs if job.name == name or (len(name) >= 12 and job.id.startswith(name))]
    named = named or [job for job in jobs if folder == job.home or name == job.folder.name]
    if not named:
        there = "There are: " + ", ".join(job.name for job in jobs) if jobs else "There are none of this project"
        raise UserError(f"{name}: no container or experiment of that name. {there}")
    return named


def _requested_gpus(requests: Sequence[dict[str, Any]]) -> str:
    """GPUs that a container asked for without our label; where it asked for a number of any, all of them."""
    ids = [each.rpartition("=")[2] for request in requests for each in request.get("DeviceIDs") or []]  # or CDI's names
    if not requests:
        return "none"
    return ",".join(ids) if ids and "all" not in ids else "all"


def _start(text: str | None) -> float | None:
    """In whole seconds; None for "never", which engines write as the year 1."""
    return None if not text or text.startswith("0001") else float(int(datetime.fromisoformat(text).timestamp()))
