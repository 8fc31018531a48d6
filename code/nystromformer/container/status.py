"""The table of `launch.py ps`."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

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
_SIGNALLED = 128
"""From here on an exit status tells the signal that ended a program."""
_MEANINGS: dict[int, str] = {
    1: "an error, which its log names",
    UserError.exit_status: "a mistake in config, data or flags, which its log names",
    125: "the engine, which could not start it",
    126: "its program, which could not be run",
    127: "its program, which is not in the image",
}
_SIGNALS: dict[int, str] = {
    signal.SIGBUS: "; its shared memory may be too small (--shm_size)",
    signal.SIGKILL: ": killed, or out of the machine's memory; goes on with `launch.py resume`",
}
_LONGEST_FAULT = 100


def progress_of_job(engine: Engine, job: Job) -> LoggedProgress | None:
    """How far the job's run is, from its log; through the engine where this machine does not see that, while the job
    runs. None where nothing is known.
    """
    place = _log_place(job)
    if job.started is None or place is None:
        return None
    if engine.is_local and _is_here(job.folder):
        return read_progress(job.folder / place.relative_to(job.home_target), job.started, time.time())
    if job.status != "running":
        return None
    program = ["python3", "-m", "nystromformer.container.progress", str(place), str(job.started)]
    try:
        execution = engine.api.exec_create(job.id, program, stderr=False)
        # As a stream: docker-py's closing of what it read whole fails through ssh, whose process ends with the answer.
        answer = b"".join(engine.api.exec_start(execution["Id"], stream=True)).decode()
        return LoggedProgress.from_json(answer) if answer.startswith("{") else None
    except (OSError, ValueError):
        return None  # it ended while it was asked, or its image has another version of the program


def ended_by_stop(job: Job, progress: LoggedProgress | None) -> bool:
    """Whether a stop ended the job. PyTorch's own torchrun has status 1 then, as after a failure, but the log tells."""
    return job.has_ended and (job.exit_code in (130, 143) or (progress is not None and bool(progress.stopped_by)))


def state(job: Job, progress: LoggedProgress | None) -> str:
    """How a job is, in a word or two."""
    return "stopped" if ended_by_stop(job, progress) else job.state


def ended_by(job: Job, progress: LoggedProgress | None) -> str:
    """What ended a job, in words; empty where it is done, or has not ended."""
    if job.fault and not job.is_active:
        text = printable(" ".join(job.fault.split()))
        return text if len(text) <= _LONGEST_FAULT else text[: _LONGEST_FAULT - 1] + "…"
    if not job.has_ended and job.status != "restarting":
        return ""
    if job.out_of_memory:
        return f"the kernel ({job.exit_code}): out of the container's memory"
    if ended_by_stop(job, progress):
        logged = None if progress is None else progress.stopped_by
        return f"{logged or _signal_name(job.exit_code)} ({job.exit_code}); goes on with `launch.py resume`"
    if name := _signal_name(job.exit_code):
        return f"{name} ({job.exit_code})" + _SIGNALS.get(job.exit_code - _SIGNALLED, ", which its log may explain")
    return _MEANINGS.get(job.exit_code, f"exit status {job.exit_code}") if job.exit_code else ""


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
    head = (job.name, job.experiment, job.command, state(job, progress), job.gpus, age, str(job.restarts))
    return (*head, *_progress_texts(job, progress), ended_by(job, progress))


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


def _signal_name(exit_code: int) -> str:
    try:
        return signal.Signals(exit_code - _SIGNALLED).name
    except ValueError:
        return ""


def _is_here(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:
        return False


def _log_place(job: Job) -> PurePosixPath | None:
    """The folder in the container that the job's run writes its log into, or a pattern of the folders above it, or the
    log of a command without steps; None for one that has neither."""
    if job.command == "validate" or job.home_target != "/model":
        output = None if job.output is None else PurePosixPath(job.output)
        return output if output is not None and output.is_relative_to(job.home_target) else None
    below = next((task.folder for task in declared_tasks() if task.command == job.command), "")
    return PurePosixPath("/model") / _checkpoints(job) / (below or ("" if job.command == "pretrain" else job.command))


def _checkpoints(job: Job) -> str:
    """Where the job's checkpoints and logs are, in the experiment folder."""
    try:
        name = load_config(job.folder / "config.json").model_checkpoints
    except (UserError, OSError):
        name = ExperimentConfig.model_fields["model_checkpoints"].default
    path = PurePosixPath("/model") / name
    return str(path.relative_to("/model")) if path.is_relative_to("/model") else "model"
