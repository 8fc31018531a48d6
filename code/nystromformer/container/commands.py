"""The launcher's commands. Those that start something get their scripts' flags from `code/launch.py`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import requests
import typer
from docker.errors import APIError

from nystromformer.container import engine
from nystromformer.container.options import IMAGE
from nystromformer.container.spec import FOLDER, LOG, STOP_SECONDS, ContainerSpec
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT

DryRun = Annotated[bool, typer.Option("--dry_run", help="Only print the equivalent docker command.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show the log until the end; Ctrl-C does not stop the container.")
]
Names = Annotated[list[str], typer.Argument(help="Containers, their folders, or names of such folders.")]

SECONDS_TO_FAIL = 10.0
"""After a start, in which mistakes in config, flags and data show."""


def start(spec: ContainerSpec, follow: bool, dry_run: bool) -> None:
    """Start a container in place of one that ended, or print the docker command."""
    if dry_run:
        typer.echo(spec.docker_run(engine.user_of_files(None)))
        return
    for mount in spec.mounts:
        if not mount.source.exists():
            raise UserError(f"{mount.source}: no such file or folder, which is {mount.target} in the container")
    client = engine.connect()
    for each in engine.find_containers(client):
        if each.name == spec.name and each.labels[FOLDER] == str(spec.folder) and not engine.is_active(each):
            each.remove()
    if spec.log is not None:
        spec.log[0].touch()  # for who follows it at once
    container = client.containers.get(spec.create(client.api, engine.user_of_files(client)))
    begin = engine.log_size(container)
    try:
        container.start()
    except APIError:
        container.remove(force=True)
        raise
    if follow:
        _follow(container, begin)
    for address, port in [spec.publish] if spec.publish else []:
        typer.echo(f"{container.name}: http://{address}:{port}/")
    _say_start(container, begin)


def ps() -> None:
    """List this project's containers, what became of them, and their GPUs."""
    containers = engine.find_containers(engine.connect())
    typer.echo(engine.table(containers) if containers else "no containers of this project")


def logs(
    name: Annotated[str, typer.Argument(help="A container, its folder, or the folder's name.")],
    follow: Follow = False,
) -> None:
    """Print the log of a container."""
    named = engine.select(engine.find_containers(engine.connect()), name)
    active = [each for each in named if engine.is_active(each)] or named
    if len(active) > 1:
        raise UserError(f"{name}: has several containers; name one of {', '.join(each.name for each in active)}")
    if follow:
        _follow(active[0])
    _print_log(active[0], follow=False)


def stop(
    names: Names,
    timeout: Annotated[
        int, typer.Option("--timeout", min=0, help="Seconds until what has not ended is killed.")
    ] = STOP_SECONDS,
) -> None:
    """End runs after their step, with a checkpoint."""
    _each(names, engine.is_active, "stop", lambda container: container.stop(timeout=timeout))


def kill(names: Names) -> None:
    """End runs at once. What they did since their last checkpoint is lost."""

    def end(container: Any) -> None:
        container.kill()
        container.wait()

    _each(names, engine.is_active, "kill", end)


def resume(names: Names) -> None:
    """Start containers again that were stopped or killed, or failed. Runs go on from their last checkpoint."""

    def has_failed(container: Any) -> bool:
        return not engine.is_active(container) and engine.state(container) != "done"

    _each(names, has_failed, "resume", lambda container: container.start())


def build() -> None:
    """Build the image from the project's Dockerfile."""
    steps = engine.connect().api.build(path=str(PROJECT), tag=IMAGE, rm=True, forcerm=True, decode=True)
    for step in steps:
        if "error" in step:
            raise UserError(f"building {IMAGE} failed: {str(step['error']).strip()}")
        typer.echo(step.get("stream", ""), nl=False)
    typer.echo(f"built: {IMAGE}")


def _print_log(container: Any, follow: bool, begin: int = 0) -> None:
    for piece in engine.read_log(container, follow, begin):
        typer.echo(piece, nl=False)


def _follow(container: Any, begin: int = 0) -> None:
    """Show a log until the container ends, and end with its status."""
    _print_log(container, True, begin)
    container.wait()
    container.reload()
    typer.echo(f"{container.name}: {engine.state(container)}", err=True)
    raise typer.Exit(engine.exit_status(container))


def _say_start(container: Any, begin: int) -> None:
    """Say that a container runs, or why it does not."""
    with suppress(requests.RequestException):  # it runs on
        container.wait(timeout=SECONDS_TO_FAIL)
    container.reload()
    name = container.name
    if engine.is_active(container):
        typer.echo(f"{name}: started; its log is {container.labels[LOG] or 'the engine'}")
        typer.echo(f"`launch.py logs -f {name}` follows it, `launch.py stop {name}` ends it")
    elif status := engine.exit_status(container):
        _print_log(container, False, begin)
        typer.echo(f"error: {name}: {engine.state(container)}", err=True)
        # A run that failed is no mistake in how the launcher was called.
        raise typer.Exit(status if status == UserError.exit_status else 1)
    else:
        typer.echo(f"{name}: done")


def _each(names: Sequence[str], fits: Callable[[Any], bool], verb: str, act: Callable[[Any], None]) -> None:
    """Do something to the containers that users name and to which it can be done, and say what they are then."""
    containers, chosen = engine.find_containers(engine.connect()), dict[str, Any]()
    for name in names:
        named = engine.select(containers, name)
        fitting = {each.id: each for each in named if fits(each)}
        if not fitting:
            states = ", ".join(f"{each.name} is {engine.state(each)}" for each in named)
            raise UserError(f"{name}: nothing to {verb}: {states}")
        chosen |= fitting
    for container in chosen.values():
        act(container)
        container.reload()
        typer.echo(f"{container.name}: {engine.state(container)}")
