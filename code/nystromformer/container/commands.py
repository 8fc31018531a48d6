"""The launcher's commands. Those that start something get their scripts' flags from `code/launch.py`."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Annotated

import typer
from docker.errors import NotFound

from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.container import control, queue
from nystromformer.container.build import build_image, build_line
from nystromformer.container.command_line import ScriptFlags
from nystromformer.container.engine import Engine, NoEngine, clear_errors
from nystromformer.container.experiments import experiment_spec, find_experiment
from nystromformer.container.jobs import Job, find_job, find_jobs, select_jobs
from nystromformer.container.mounts import Place
from nystromformer.container.options import BuildOptions, LaunchOptions
from nystromformer.container.output import follow_output, last_words, output_size, read_output
from nystromformer.container.preprocessing import preprocess_spec
from nystromformer.container.scripts import SCRIPTS, Script
from nystromformer.container.spec import RunSpec
from nystromformer.container.status import progress_of_job, table
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT

DryRun = Annotated[bool, typer.Option("--dry_run", help="Only print the equivalent docker command.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show the log until the run ends; Ctrl-C does not stop the run.")
]
Names = Annotated[list[str] | None, typer.Argument(help="Containers, experiment folders, or names of such folders.")]
All = Annotated[bool, typer.Option("--all", help="All containers of this project that this applies to.")]

_FAILED = 1
"""Exit status where a run failed, which is not a mistake in how the launcher was called."""


def start_experiment(
    script: Script, experiment: str, flags: ScriptFlags, options: LaunchOptions, follow_log: bool, dry_run: bool
) -> None:
    """Start the container of a script on an experiment folder, or print the docker command."""
    folder, engine = find_experiment(experiment), Engine()
    spec = experiment_spec(script, folder, flags, options, _place(engine, options, dry_run))
    _start(engine, spec, follow_log, dry_run)


def start_preprocessing(
    script: str, flags: ScriptFlags, options: LaunchOptions, follow_log: bool, dry_run: bool
) -> None:
    """Start the container of a script of data-preprocessing, or print the docker command."""
    engine = Engine()
    spec = preprocess_spec(script, flags, options, _place(engine, options, dry_run))
    _start(engine, spec, follow_log, dry_run)


def run_queue(
    command: str, experiments: Sequence[str], flags: ScriptFlags, options: LaunchOptions, gpus_each: int, dry_run: bool
) -> None:
    """Put experiments into the queue and run it to its end."""
    if command not in SCRIPTS:
        raise UserError(f"--command {command}: expected one of {', '.join(SCRIPTS)}")
    if dry_run and not experiments:
        raise UserError("queue --dry_run: expected experiments")
    folders, engine = [find_experiment(name) for name in experiments], Engine()
    if folders:
        gpus = queue.all_gpus(engine, options.image) if options.gpus == "all" else options.gpus
        slots = queue.make_slots(gpus, gpus_each)
        each, place = replace(options, gpus=slots[0]), _place(engine, options, dry_run)
        specs = [experiment_spec(SCRIPTS[command], folder, flags, each, place) for folder in folders]
        if dry_run:
            typer.echo("\n".join(spec.docker_run() for spec in specs))
            return
        queue.enqueue(engine, specs, slots)
        typer.echo(f"queued: {', '.join(spec.name for spec in specs)}")
    _drive(engine)


def ps(
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also list finished ones.")] = False,
) -> None:
    """List this project's containers, and how far each run is."""
    engine = Engine()
    jobs = find_jobs(engine)
    shown = [job for job in jobs if ended or job.state != "done"]
    done = len(jobs) - len(shown)
    if shown:
        typer.echo(table([(job, progress_of_job(engine, job)) for job in shown]))
    else:
        typer.echo("no containers of this project" + (f", but {done} that are done (--all)" if done else ""))


def number_of_lines(text: str) -> int:
    """Of --tail, which may be all of them."""
    if text != "all" and not text.isdecimal():
        raise typer.BadParameter(f"expected a number of lines, or all, found {text}")
    return sys.maxsize if text == "all" else min(int(text), sys.maxsize)


def logs(
    name: Annotated[str, typer.Argument(help="A container, an experiment folder, or its name.")],
    follow: Follow = False,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            "-n",
            parser=number_of_lines,
            metavar="LINES",
            help="Show this many of the last lines, or all. Default: all, with -f 20.",
        ),
    ] = None,
) -> None:
    """Print the log of a container."""
    engine = Engine()
    named = select_jobs(find_jobs(engine), name)
    active = [job for job in named if job.is_active] or named
    if len(active) > 1:
        raise UserError(f"{name}: has several containers; name one of {', '.join(job.name for job in active)}")
    if follow:
        _follow(engine, active[0], lines=20 if tail is None else tail)
    else:
        typer.echo(read_output(engine, active[0], tail), nl=False)


def stop(
    names: Names = None,
    everything: All = False,
    timeout: Annotated[
        int | None,
        typer.Option(
            "--timeout",
            "--time",
            "-t",
            min=0,
            help="Seconds until a run that has not ended is killed. Default: as set for its container (300).",
        ),
    ] = None,
) -> None:
    """End runs after their step, with a checkpoint. Those that wait in the queue are taken out of it."""
    engine = Engine()
    for job in _choose_jobs(engine, names, everything, lambda job: job.is_active or job.is_waiting, "stop"):
        if job.is_waiting:
            control.remove(engine, job)
            typer.echo(f"{job.folder.name}: taken out of the queue")
        else:
            with clear_errors(f"stopping {job.name}"):
                engine.api.stop(job.id, timeout=job.stop_seconds if timeout is None else timeout)
            _say_end(engine, job)


def kill(names: Names = None, everything: All = False) -> None:
    """End runs at once. What they did since their last checkpoint is lost."""
    engine = Engine()
    for job in _choose_jobs(engine, names, everything, lambda job: job.is_active, "kill"):
        with clear_errors(f"killing {job.name}"):
            engine.api.kill(job.id)
            with suppress(NotFound):
                engine.api.wait(job.id)
        _say_end(engine, job)


def resume(names: Names = None, everything: All = False) -> None:
    """Start stopped, killed or failed containers again. They go on from their last checkpoint."""
    engine, refused = Engine(), []
    for job in _choose_jobs(engine, names, everything, lambda job: job.has_ended and job.state != "done", "resume"):
        # Those whose GPUs are the queue's, or whose work another one does, are named in one error at the end.
        try:
            queue.refuse_resuming(job, find_jobs(engine))
        except UserError as error:
            refused.append(str(error))
            continue
        before = output_size(engine, job.output_path)
        with clear_errors(f"resuming {job.name}"):
            engine.api.start(job.id)
        _say_start(engine, control.find_present(engine, job.id, job.name), before, is_new=False)
    if refused:
        raise UserError("\n".join(refused))


def remove(names: Names = None, everything: All = False) -> None:
    """Remove containers that have ended. Checkpoints and logs stay in the experiment folders."""
    engine = Engine()
    for job in _choose_jobs(engine, names, everything, lambda job: not job.is_active and not job.is_waiting, "remove"):
        control.remove(engine, job)
        typer.echo(f"{job.name}: removed; its files stay in {job.home}")


@with_flag_groups
def build(options: BuildOptions, dry_run: DryRun = False) -> None:
    """Build the image from the project's Dockerfile."""
    if dry_run:
        typer.echo(build_line(PROJECT, options))
        return
    build_image(Engine(), PROJECT, options, lambda text: typer.echo(text, nl=False))
    typer.echo(f"built: {options.tag}")


def _place(engine: Engine, options: LaunchOptions, dry_run: bool) -> Place:
    """What the engine's machine sees; files that a container writes shall belong to who calls."""
    # Not every system knows such ids.
    user = f"{os.getuid()}:{os.getgid()}" if hasattr(os, "getuid") else None
    try:
        # A rootless engine calls the caller root.
        user = "0:0" if engine.is_rootless else user
    except NoEngine:
        if not dry_run:
            raise
    return Place(engine.is_local and options.remote_root is None, options.remote_root, options.user or user)


def _start(engine: Engine, spec: RunSpec, follow_log: bool, dry_run: bool) -> None:
    if dry_run:
        typer.echo(spec.docker_run())
        return
    before = output_size(engine, spec.output_path)
    job = control.start(engine, spec)
    if follow_log:
        _follow(engine, job, begin=before)
    else:
        _say_start(engine, job, before, is_new=True)


def _say_start(engine: Engine, job: Job, before: int, is_new: bool) -> None:
    """Say that a job runs, or why it does not. `before`: bytes of its log from earlier starts; `is_new`: its container
    was made just now, and is of no use if it cannot run."""
    typer.echo(f"{job.name}: starting" + (f" on GPU {job.gpus}" if job.gpus != "none" else ""))
    with _runs_on_if_interrupted(job):
        job = control.settle(engine, job, lambda now: progress_of_job(engine, now) is not None)
    if job.has_ended and not job.exit_code:
        typer.echo(f"{job.name}: done")
    elif job.has_ended:
        said = last_words(engine, job, before)
        if is_new and job.state != "stopped":
            control.remove(engine, job)
        typer.echo(f"error: {job.name} {job.state}:\n{said or 'it wrote nothing'}", err=True)
        raise typer.Exit(UserError.exit_status if job.exit_code == UserError.exit_status else _FAILED)
    else:
        log = job.output_path if engine.is_local and job.output_path is not None else "the container"
        typer.echo(f"{job.name}: started; its log is {log}")
        typer.echo(f"`launch.py logs -f {job.name}` follows it, `launch.py stop {job.name}` ends it")


def _follow(engine: Engine, job: Job, lines: int | None = None, begin: int = 0) -> None:
    """Show a log until the job ends, and end with its status."""
    with _runs_on_if_interrupted(job):
        ended = follow_output(engine, job, lambda piece: typer.echo(piece, nl=False), lines, begin)
    if ended is not None:
        typer.echo(f"{job.name}: {ended.state}", err=True)
        raise typer.Exit(ended.exit_code)


def _drive(engine: Engine) -> None:
    try:
        ended = queue.drive(engine, typer.echo)
    except KeyboardInterrupt:
        waiting, running = queue.queue_length(engine)
        typer.echo(f"\n{running} still running, {waiting} waiting; `launch.py queue` continues with them", err=True)
        raise typer.Exit(130) from None
    if not ended:
        typer.echo("the queue is empty")
        return
    typer.echo("\n" + table([(job, progress_of_job(engine, job)) for job in ended]))
    if any(job.state.startswith(("failed", "out of")) for job in ended):
        raise typer.Exit(_FAILED)


def _choose_jobs(
    engine: Engine, names: Sequence[str] | None, everything: bool, fits: Callable[[Job], bool], verb: str
) -> list[Job]:
    """The jobs that users name and that something can be done to."""
    if bool(names) == everything:
        raise UserError(f"{verb}: expected containers, experiments, or --all")
    jobs = find_jobs(engine)
    if everything:
        return [job for job in jobs if fits(job)]
    chosen: list[Job] = []
    for name in names or ():
        named = select_jobs(jobs, name)
        fitting = [job for job in named if fits(job)]
        if not fitting:
            states = ", ".join(f"{job.name} is {job.state}" for job in named)
            raise UserError(f"{name}: nothing to {verb}: {states}")
        chosen += [job for job in fitting if job not in chosen]
    return chosen


def _say_end(engine: Engine, job: Job) -> None:
    """Say how a run ended and what it goes on from."""
    # None where the engine removed it (`docker run --rm`).
    after = find_job(engine, job.id)
    progress = progress_of_job(engine, after or job)
    how = "ended" if after is None else after.state
    if progress is not None and progress.work:
        how += f" after {progress.work}"
    elif progress is not None:
        how += f" after step {progress.step}" + ("" if progress.steps is None else f" of {progress.steps}")
    checkpoints = [path for path in job.folder.rglob("cp-*.cp") if path.is_file()] if engine.is_local else []
    if checkpoints:
        how += f"; its last checkpoint is {max(checkpoints, key=lambda path: path.stat().st_mtime)}"
    typer.echo(f"{job.name}: {how}")


@contextmanager
def _runs_on_if_interrupted(job: Job) -> Iterator[None]:
    """Ctrl-C ends the launcher, which only looks on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\n{job.name} is still running; `launch.py stop {job.name}` ends it with a checkpoint", err=True)
        raise typer.Exit(130) from None
