"""The launcher's own flags: what is said of a container, and of the image, as one value each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from nystromformer.errors import UserError

IMAGE = "nystromformer"
"""What `launch.py build` calls the image, if no flag says otherwise."""
_GPU = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")
_RESTART = re.compile(r"no|on-failure(:[1-9]\d{0,8})?")


@dataclass(frozen=True)
class Mount:
    """A folder or file of the engine's machine in the container."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class LaunchOptions:
    """As they are typed.

    Raises:
        UserError: a value that engines refuse, or that would do harm.
    """

    gpus: Annotated[
        str, typer.Option("--gpus", help="GPUs of the engine's machine to use: all, none, or numbers such as 0,1.")
    ] = "all"
    image: Annotated[str, typer.Option("--image", help="Image to run; `launch.py build` makes it.")] = IMAGE
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the container and of its log; default: made from what it runs."),
    ] = None
    restart: Annotated[
        str,
        typer.Option(
            "--restart",
            help="When the engine restarts it: no, or on-failure:N (at most N times, such as 3).",
        ),
    ] = "no"
    shm_size: Annotated[
        str | None,
        typer.Option("--shm_size", help="Shared memory of the container, such as 8g; default: the machine's own."),
    ] = None
    network: Annotated[str, typer.Option("--network", help="Docker network to join; host: the machine's own.")] = "host"
    mount: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="HOST:CONTAINER[:ro]", help="Further folder to mount; repeatable."),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Environment variable of the container; repeatable."),
    ] = None
    code: Annotated[
        str | None,
        typer.Option("--code", help="Code folder to run; default: this one; image: the code in the image."),
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="UID:GID",
            help="Whom the files belong to that the container writes; default: yours on this machine.",
        ),
    ] = None
    remote_root: Annotated[
        str | None,
        typer.Option("--remote_root", help="Path of this project on the engine's machine, if it is another one."),
    ] = None

    def __post_init__(self) -> None:
        ids = self.gpus.split(",")
        if self.gpus not in ("all", "none") and not (all(map(_GPU.fullmatch, ids)) and len(set(ids)) == len(ids)):
            raise UserError(
                f"--gpus {self.gpus}: expected all, none, or the numbers (or UUIDs) of different GPUs with commas "
                "between them, such as 0,1"
            )
        if not _RESTART.fullmatch(self.restart):
            raise UserError(
                f"--restart {self.restart}: expected no, or on-failure:N with N at least 1, such as on-failure:3. "
                "Other policies would restart a finished run, or one that always fails, forever"
            )
        if self.shm_size is not None and not re.fullmatch(r"[1-9]\d*[bkmgBKMG]?", self.shm_size):
            raise UserError(f"--shm_size {self.shm_size}: expected a number with b, k, m or g, such as 8g")
        if self.user is not None and not re.fullmatch(r"\d{1,10}:\d{1,10}", self.user):
            raise UserError(f"--user {self.user}: expected two numbers, such as 1000:1000 (`id -u`, `id -g`)")
        # Made again where they are needed; here for their errors, before there is any other.
        _ = self.more_mounts, _assignments("--env", self.env or ())

    @property
    def more_mounts(self) -> tuple[Mount, ...]:
        """Mounts beside those that a script needs."""
        return tuple(_mount(text) for text in self.mount or ())


@dataclass(frozen=True)
class BuildOptions:
    """What the image is built of.

    Raises:
        UserError: an argument that is not NAME=VALUE.
    """

    tag: Annotated[str, typer.Option("--tag", help="Name of the image.")] = IMAGE
    base: Annotated[
        str | None, typer.Option("--base", help="Image to build on; default: the Dockerfile's CUDA image.")
    ] = None
    torch_index_url: Annotated[
        str | None,
        typer.Option("--torch_index_url", help="Package index to take torch from, such as that of its CPU builds."),
    ] = None
    build_arg: Annotated[
        list[str] | None,
        typer.Option("--build_arg", metavar="NAME=VALUE", help="Argument of the Dockerfile; repeatable."),
    ] = None
    network: Annotated[
        str | None, typer.Option("--network", help="Docker network that the building steps join, such as host.")
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Fetch the base image again and use no cached layer.")] = False

    def __post_init__(self) -> None:
        _ = self.arguments

    @property
    def arguments(self) -> dict[str, str]:
        """The Dockerfile's, by name."""
        own = {"BASE_IMAGE": self.base, "TORCH_INDEX_URL": self.torch_index_url}
        return {name: value for name, value in own.items() if value} | _assignments("--build_arg", self.build_arg or ())


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
        raise UserError(f"--mount {text}: expected FOLDER:/IN/CONTAINER or FOLDER:/IN/CONTAINER:ro")
    return Mount(str(Path(source).absolute()), target, mode == "ro")


def _assignments(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """What a flag gives names, each time as NAME=VALUE.

    Raises:
        UserError: one that is not.
    """
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(f"{flag} {text}: expected NAME=VALUE")
        values[name] = value
    return values
