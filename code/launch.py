"""Run experiments in containers: one for each folder with a config.json."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

import run_glue
import run_imdb
import run_pretrain
import run_validation
import run_wikihop
from nystromformer import cli
from nystromformer.container import commands
from nystromformer.container.command_line import PassingAll, passing_flags_to
from nystromformer.container.scripts import IMAGE, SCRIPTS

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "pretrain": run_pretrain.pretrain,
    "validate": run_validation.validation,
    "glue": run_glue.glue,
    "imdb": run_imdb.imdb,
    "wikihop": run_wikihop.wikihop,
}

Image = Annotated[str, typer.Option("--image", help="Of the engine; `launch.py build` makes it.")]
GpuIds = Annotated[str, typer.Option("--gpus", help="all, none, or numbers such as 0,1.")]
Name = Annotated[str | None, typer.Option("--name", help="Of container and log, if not after the experiment.")]
Network = Annotated[str, typer.Option("--network", help="Of the engine.")]
ShmSize = Annotated[
    str | None, typer.Option("--shm_size", help="Shared memory of its own, such as 8g; else the host's.")
]
Mounts = Annotated[list[str] | None, typer.Option("--mount", help="HOST:CONTAINER or HOST:CONTAINER:ro; repeatable.")]
Environment = Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE; repeatable.")]
Restart = Annotated[str, typer.Option("--restart", help="no, on-failure:N, unless-stopped or always.")]
Code = Annotated[str | None, typer.Option("--code", help="Folder to mount; default: this one; image: the image's.")]
RemoteRoot = Annotated[
    str | None, typer.Option("--remote_root", help="Where this project is on a remote engine's machine.")
]
DryRun = Annotated[bool, typer.Option("--dry_run", help="Only print the equal docker command.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Show the log until it ends; Ctrl-C leaves it running.")]
Names = Annotated[list[str] | None, typer.Argument(help="Containers, experiment folders or their names.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]


def start_command(command: str) -> Callable[..., None]:
    """The command that starts the container of one script."""

    def start(
        context: typer.Context,
        experiment: Annotated[str, typer.Argument(help="Folder with a config.json.")],
        gpus: GpuIds = "all",
        image: Image = IMAGE,
        name: Name = None,
        follow: Follow = False,
        dry_run: DryRun = False,
        restart: Restart = "no",
        shm_size: ShmSize = None,
        network: Network = "host",
        mount: Mounts = None,
        env: Environment = None,
        code: Code = None,
        remote_root: RemoteRoot = None,
    ) -> None:
        options = commands.options(image, gpus, name, network, shm_size, mount, env, restart, code, remote_root)
        commands.start_experiment(SCRIPTS[command], experiment, context.obj, options, follow, dry_run)

    start.__doc__ = f"Run {SCRIPTS[command].file} on an experiment folder, in a container of its own."
    return start


def preprocess(
    context: typer.Context,
    script: Annotated[str, typer.Argument(help="wiki, bookcorpus, …, 512, 4096, or a script of data-preprocessing.")],
    image: Image = IMAGE,
    name: Name = None,
    follow: Follow = False,
    dry_run: DryRun = False,
    restart: Restart = "no",
    shm_size: ShmSize = None,
    network: Network = "host",
    mount: Mounts = None,
    env: Environment = None,
    code: Code = None,
    remote_root: RemoteRoot = None,
) -> None:
    """Run a script of data-preprocessing, with all flags that are not the launcher's."""
    options = commands.options(image, "none", name, network, shm_size, mount, env, restart, code, remote_root)
    commands.start_preprocessing(script, context.obj, options, follow, dry_run)


def queue(
    context: typer.Context,
    experiments: Annotated[list[str] | None, typer.Argument(help="Folders; none: go on with the queue.")] = None,
    command: Annotated[str, typer.Option("--command", help=f"What to run: {', '.join(SCRIPTS)}.")] = "pretrain",
    gpus: Annotated[
        str, typer.Option("--gpus", help="Numbers such as 0,1; all: of the engine's machine; none.")
    ] = "all",
    gpus_each: Annotated[int, typer.Option("--gpus_each", min=1, help="GPUs of one experiment.")] = 1,
    image: Image = IMAGE,
    dry_run: DryRun = False,
    shm_size: ShmSize = None,
    network: Network = "host",
    mount: Mounts = None,
    env: Environment = None,
    code: Code = None,
    remote_root: RemoteRoot = None,
) -> None:
    """Run experiments over GPUs, one after another on each; started again, it goes on with those that wait."""
    options = commands.options(image, gpus, None, network, shm_size, mount, env, "no", code, remote_root)
    commands.run_queue(command, experiments or [], context.obj, options, gpus_each, dry_run)


def ps(
    ended: Annotated[bool, typer.Option("--all", help="Also those that are done.")] = False,
) -> None:
    """List the containers of this project: state, step, loss, speed, time left."""
    commands.list_jobs(ended)


def logs(
    name: Annotated[str, typer.Argument(help="A container, an experiment folder or its name.")],
    follow: Follow = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Last lines; default: all, with -f 20.")] = None,
) -> None:
    """Print the log of a container."""
    commands.show_log(name, follow, tail)


def stop(
    names: Names = None,
    everything: All = False,
    timeout: Annotated[
        int | None, typer.Option("--timeout", min=0, help="Seconds to a kill; default: its own.")
    ] = None,
) -> None:
    """End runs after their step, with a checkpoint; take waiting ones out of the queue."""
    commands.stop_jobs(names or [], everything, timeout)


def kill(names: Names = None, everything: All = False) -> None:
    """End runs at once: what they did since their last checkpoint is lost."""
    commands.kill_jobs(names or [], everything)


def resume(names: Names = None, everything: All = False) -> None:
    """Start containers again that were stopped, killed or failed: they go on from their last checkpoint."""
    commands.resume_jobs(names or [], everything)


def remove(names: Names = None, everything: All = False) -> None:
    """Remove containers that have ended. Checkpoints and logs stay in the experiment folders."""
    commands.remove_jobs(names or [], everything)


def build(
    tag: Annotated[str, typer.Option("--tag", help="Name of the image.")] = IMAGE,
    base: Annotated[str | None, typer.Option("--base", help="Base image, if not the Dockerfile's CUDA image.")] = None,
    torch_index_url: Annotated[
        str | None, typer.Option("--torch_index_url", help="Index that torch comes from, such as its CPU builds'.")
    ] = None,
    build_arg: Annotated[list[str] | None, typer.Option("--build_arg", help="NAME=VALUE; repeatable.")] = None,
    network: Annotated[str | None, typer.Option("--network", help="Of the build, such as host.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Fetch the base again and use no cached layer.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Build the image from the project's Dockerfile."""
    commands.build(tag, base, torch_index_url, build_arg or [], network, fresh, dry_run)


def main() -> None:
    """Run the command that the first argument names."""
    app = cli.application()
    for name, function in FUNCTIONS.items():
        kind = passing_flags_to({name: function}, name)
        app.command(name, cls=kind)(cli.with_clear_errors(start_command(name)))
    app.command(cls=PassingAll)(cli.with_clear_errors(preprocess))
    kind = passing_flags_to(FUNCTIONS, "pretrain", "--command")
    app.command(cls=kind)(cli.with_clear_errors(queue))
    for function in (ps, logs, stop, kill, resume, remove, build):
        app.command()(cli.with_clear_errors(function))
    app()


if __name__ == "__main__":
    main()
