"""The launcher's own flags: what is said of a container, as one value."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.errors import UserError

IMAGE = "nystromformer"
"""What `launch.py build` calls the image, if no flag says otherwise."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of this machine in the container."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True)
class LaunchOptions:
    """As they are typed."""

    gpus: Annotated[
        str,
        typer.Option("--gpus", help="GPUs to use: all, none, or numbers such as 0,1. Each gets a process in training."),
    ] = "all"
    image: Annotated[str, typer.Option("--image", help="Image to run; `launch.py build` makes it.")] = IMAGE
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the container and of its log; default: made from what it runs."),
    ] = None
    network: Annotated[
        str | None,
        typer.Option("--network", help="Docker network to join. Default: host; for serve, one with its port alone."),
    ] = None
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="HOST:CONTAINER[:ro]", help="Further folder to mount; repeatable."),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Environment variable of the container; repeatable."),
    ] = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w/-]+(,[\w/-]+)*", self.gpus):
            raise UserError(f"--gpus {self.gpus}: expected all, none, or numbers (or UUIDs) with commas, such as 0,1")
        _ = self.more_mounts  # for its errors
        if wrong := [text for text in self.env or () if text.find("=") < 1]:
            raise UserError(f"--env {wrong[0]}: expected NAME=VALUE")

    @property
    def gpu_ids(self) -> list[str]:
        """The GPUs that are named one by one."""
        return [] if self.gpus in ("all", "none") else self.gpus.split(",")

    @property
    def more_mounts(self) -> list[Mount]:
        """Mounts beside those that a script needs."""
        return [_mount(text) for text in self.mount or ()]


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise UserError(f"--mount {text}: expected FOLDER:/IN/CONTAINER or FOLDER:/IN/CONTAINER:ro")
    return Mount(Path(source).absolute(), target, mode == "ro")
