"""The table of `launch.py ps`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePosixPath

from nystromformer.config import ExperimentConfig, load_config
from nystromformer.container.engine import Engine
from nystromformer.container.jobs import Job
from nystromformer.container.progress import LoggedProgress, read_progress
from nystromformer.errors import UserError
from nystromformer.tables import Column, aligned

_COLUMNS = (
    *(Column(heading, is_text=True) for heading in ("CONTAINER", "EXPERIMENT", "COMMAND", "STATE", "GPU")),
    *(Column(heading) for heading in ("STEP", "LOSS", "TOKENS/S", "LEFT")),
)


def progress_of_job(engine: Engine, job: Job) -> LoggedProgress | None:
    """How far the job's run is, from the log in its folder; through the engine where this machine does not see that,
    while the job runs. None where nothing is known.
    """
    if job.started is None or job.home_target != "/model":
        return None
    inside = PurePosixPath(_checkpoints(job)) / ("" if job.command == "pretrain" else job.command)
    if job.command == "validate":
        return None
    if engine.is_local and job.folder.is_dir():
        return read_progress(job.folder / inside, job.started, time.time())
    if job.status != "running":
        return None
    program = ["python3", "-m", "nystromformer.container.progress", f"/model/{inside}", str(job.started)]
    try:
        made = engine.api.exec_create(job.id, program, stderr=False)
        answer = engine.api.exec_start(made["Id"]).decode()
        return LoggedProgress.from_json(answer) if answer.startswith("{") else None
    except (OSError, ValueError, TypeError):
        return None  # it ended while it was asked, or its image has another version of the program


def ended_by_stop(job: Job, progress: LoggedProgress | None) -> bool:
    """Whether a stop ended the job: torchrun has the status 1 then, as after a failure, but the log tells."""
    return job.has_ended and (job.exit_code in (130, 143) or (progress is not None and bool(progress.stopped_by)))


def state(job: Job, progress: LoggedProgress | None) -> str:
    """How a job is, in a word or two."""
    return "stopped" if ended_by_stop(job, progress) else job.state


def table(rows: Sequence[tuple[Job, LoggedProgress | None]]) -> str:
    """A line for each job."""
    return "\n".join(aligned(_COLUMNS, [_cells(job, progress) for job, progress in rows]))


def _cells(job: Job, progress: LoggedProgress | None) -> tuple[str, ...]:
    head = (job.name, job.experiment, job.command, state(job, progress), job.gpus)
    if progress is None:
        return (*head, "-", "-", "-", "-")
    step = str(progress.step) if progress.steps is None else f"{progress.step}/{progress.steps}"
    loss = "-" if progress.loss is None else f"{progress.loss:.4g}"
    speed = "-" if progress.tokens_per_second is None else f"{progress.tokens_per_second:,.0f}"
    left = interval(progress.seconds_left) if job.is_active and progress.seconds_left is not None else "-"
    return (*head, step, loss, speed, left)


def interval(seconds: float) -> str:
    """`2 d 03:15`, `3:15:00` or `4:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _checkpoints(job: Job) -> str:
    """Where the job's checkpoints and logs are, in the experiment folder."""
    try:
        name = load_config(job.folder / "config.json").model_checkpoints
    except UserError:
        name = ExperimentConfig.model_fields["model_checkpoints"].default
    path = PurePosixPath("/model") / name
    return str(path.relative_to("/model")) if path.is_relative_to("/model") else "model"
