"""The table of `launch.py ps`."""

from __future__ import annotations

import json
import os
import signal
import textwrap
import time
from collections.abc import Sequence
from pathlib import PurePosixPath

from nystromformer.config import ExperimentConfig, load_config
from nystromformer.container.engine import Engine
from nystromformer.container.jobs import Job
from nystromformer.container.progress import LoggedProgress, read_progress
from nystromformer.errors import UserError
from nystromformer.tables import Column, aligned, printable
from nystromformer.tasks.declaration import declared_tasks

_NOTHING = "-"
_COLUMNS = (
    *(Column(heading, is_text=True) for heading in ("CONTAINER", "EXPERIMENT", "COMMAND", "STATE", "GPU")),
    *(Column(heading) for heading in ("AGE", "RESTARTS", "PROGRESS", "LOSS", "TOKENS/S", "LEFT")),
)
_WHY = Column("ENDED BY", is_text=True)
"""Only where something has ended in another way than by being done."""
_MEANINGS: dict[int, str] = {
    0: "",
    1: "an error, which its log names",
    UserError.exit_status: "a mistake in config, data or flags, which its log names",
    125: "the engine, which could not start it",
    126: "its program, which could not be run",
    127: "its program, which is not in the image",
    130: "SIGINT (130); goes on with `launch.py resume`",
    135: "SIGBUS (135); its shared memory may be too small (--shm_size)",
    137: "SIGKILL (137): killed, or out of the machine's memory; goes on with `launch.py resume`",
    143: "SIGTERM (143); goes on with `launch.py resume`",
}
"""What ended a container, by its exit status; above 128 it tells the signal that ended a program."""


def progress_of_job(engine: Engine, job: Job) -> LoggedProgress | None:
    """How far the job's run is, from its log; through the engine where this machine does not see that, while the job
    runs. None where nothing is known.
    """
    place = _log_place(job)
    if job.started is None or place is None:
        return None
    if engine.is_local and os.path.isdir(job.folder):
        return read_progress(job.folder / place.relative_to(job.home_target), job.started, time.time())
    if job.status != "running":
        return None
    program = ["python3", "-m", "nystromformer.container.progress", str(place), str(job.started)]
    try:
        execution = engine.api.exec_create(job.id, program, stderr=False)
        # As a stream: docker-py's closing of what it read whole fails through ssh, whose process ends with the answer.
        answer = b"".join(engine.api.exec_start(execution["Id"], stream=True)).decode()
        return None if answer == "null" else LoggedProgress(**json.loads(answer))
    except (OSError, ValueError, TypeError):
        return None  # it ended while it was asked, or its image has another version of the program


def ended_by(job: Job) -> str:
    """What ended a job, in words; empty where it is done, or has not ended."""
    if job.fault and not job.is_active:
        return textwrap.shorten(printable(" ".join(job.fault.split())), 100, placeholder="…")
    if not job.has_ended and job.status != "restarting":
        return ""
    if job.out_of_memory:
        return f"the kernel ({job.exit_code}): out of the container's memory"
    if job.exit_code in _MEANINGS:
        return _MEANINGS[job.exit_code]
    number = job.exit_code - 128
    if number in {each.value for each in signal.Signals}:
        return f"{signal.Signals(number).name} ({job.exit_code}), which its log may explain"
    return f"exit status {job.exit_code}"


def table(rows: Sequence[tuple[Job, LoggedProgress | None]], now: float | None = None) -> str:
    """A line for each job.

    Args:
        now: seconds since 1970; None: the clock's.
    """
    now = time.time() if now is None else now
    lines = [[printable(text) for text in _row(job, progress, now)] for job, progress in rows]
    if any(line[-1] for line in lines):
        return "\n".join(aligned((*_COLUMNS, _WHY), lines))
    return "\n".join(aligned(_COLUMNS, [line[:-1] for line in lines]))


def _row(job: Job, progress: LoggedProgress | None, now: float) -> tuple[str, ...]:
    age = _age(now - job.created)
    head = (job.name, job.folder.name, job.command, job.state, job.gpus, age, str(job.restarts))
    return (*head, *_progress_texts(job, progress), ended_by(job))


def _progress_texts(job: Job, progress: LoggedProgress | None) -> tuple[str, str, str, str]:
    # What a command without steps said last was before its end.
    if progress is None or (progress.work and job.state == "done"):
        return (_NOTHING,) * 4
    step = str(progress.step) if progress.steps is None else f"{progress.step}/{progress.steps}"
    loss = _NOTHING if progress.loss is None else f"{progress.loss:.4g}"
    speed = _NOTHING if progress.tokens_per_second is None else f"{progress.tokens_per_second:,.0f}"
    left = interval(progress.seconds_left) if job.is_active and progress.seconds_left is not None else _NOTHING
    return progress.work or step, loss, speed, left


def interval(seconds: float) -> str:
    """`2 d 03:15`, `3:15:00` or `4:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _age(seconds: float) -> str:
    """`12s`, `34min`, `5h` or `6d`; an engine's clock may be ahead of this machine's."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def _log_place(job: Job) -> PurePosixPath | None:
    """The folder in the container that the job's run writes its log into, or a pattern of the folders above it, or the
    log of a command without steps; None for one that has neither."""
    if job.command == "validate" or job.home_target != "/model":
        return None if job.output_path is None else PurePosixPath(job.output or "")
    default = ExperimentConfig.model_fields["model_checkpoints"].default
    try:
        name = load_config(job.folder / "config.json").model_checkpoints
    except (UserError, OSError):
        name = default
    checkpoints = PurePosixPath("/model", name)
    if not checkpoints.is_relative_to("/model"):
        checkpoints = PurePosixPath(default)
    below = next((task.folder for task in declared_tasks() if task.command == job.command), "")
    return checkpoints / (below or ("" if job.command == "pretrain" else job.command))
