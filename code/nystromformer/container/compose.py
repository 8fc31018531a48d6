"""What all containers of the launcher have in common: the launcher's flags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nystromformer.container.mounts import Mounts
from nystromformer.container.options import LaunchOptions
from nystromformer.container.spec import RunSpec


def compose(
    options: LaunchOptions,
    mounts: Mounts,
    argv: Sequence[str],
    *,
    name: str,
    output: PurePosixPath,
    command: str,
    home: Path,
    gpus: str = "none",
    working_dir: str | None = None,
) -> RunSpec:
    """The container of a program, with what the launcher's flags say.

    Args:
        options: of which the name and the GPUs do not count.
        mounts: those that the program needs.
        command, home: what runs, and the folder that it writes into.
    """
    return RunSpec(
        name=name,
        image=options.image,
        argv=tuple(argv),
        output=str(output),
        mounts=(*mounts.entries, *options.more_mounts),
        gpus=gpus,
        user=mounts.place.user,
        shm_size=options.shm_size,
        network=options.network,
        environment=options.variables,
        restart=options.restart,
        command=command,
        home=mounts.place.path(home),
        working_dir=working_dir,
    )


def engine_name(text: str) -> str:
    """A folder's name with what engines refuse in a container's replaced."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in text)
    return name if name[:1].isalnum() else f"x{name}"
