"""What all containers of the launcher have in common: the engine's machine, its folders, and the launcher's flags."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nystromformer.container.options import LaunchOptions
from nystromformer.container.scripts import CODE_FOLDER, COMMAND_LABEL, EXPERIMENT_LABEL, GPUS_LABEL
from nystromformer.container.spec import Gpus, Mount, RunSpec
from nystromformer.errors import UserError
from nystromformer.paths import PROJECT


@dataclass(frozen=True)
class Place:
    """The engine's machine: which folders it sees, what they are called there, and who writes into them.

    Args:
        is_here: whether it sees this machine's folders, so that they can be checked.
        remote_root: where this project lies there, if elsewhere than here.
        user: "uid:gid" of the files that are written.
    """

    is_here: bool
    remote_root: str | None = None
    user: str | None = None

    def path(self, local: Path) -> str:
        """What a path of this machine is there."""
        absolute = Path(os.path.abspath(local))
        if self.remote_root is not None and absolute.is_relative_to(PROJECT):
            return str(PurePosixPath(self.remote_root) / absolute.relative_to(PROJECT).as_posix())
        return str(absolute)


@dataclass
class Mounts:
    """The mounts of a container, as they are found out one by one."""

    place: Place
    entries: list[Mount] = field(default_factory=list)

    def add(self, source: Path, target: str, read_only: bool = False) -> None:
        # Resolved as this machine does: engines take `..` from what is written, links or not.
        path = self.place.path(source.resolve() if self.place.is_here else source)
        for index, other in enumerate(self.entries):
            if (other.source, other.target) == (path, target):
                self.entries[index] = Mount(path, target, read_only and other.read_only)
                return
        self.entries.append(Mount(path, target, read_only))

    def shows(self, content: Path, target: str, read_only: bool) -> bool:
        """Whether `target` is, by a mount there is, that file or folder of this machine already, and may be written to
        where it is not to be read only."""
        path = PurePosixPath(target)
        above = [mount for mount in self.entries if path.is_relative_to(mount.target)]
        if not above:
            return False
        mount = max(above, key=lambda each: len(each.target))
        is_allowed = read_only or not mount.read_only
        return is_allowed and Path(mount.source, path.relative_to(mount.target)).resolve() == content

    def add_code(self, given: str | None) -> None:
        """The code that runs: a folder, this project's where none is given, or for "image" what the image holds.

        Raises:
            UserError: the folder has no code of this project.
        """
        if given == "image":
            return
        code = Path(given or CODE_FOLDER)
        if self.place.is_here and not (code / "nystromformer").is_dir():
            raise UserError(
                f"--code {code}: no code folder of this project, which has nystromformer and run_*.py in it"
            )
        self.add(code, "/code", read_only=True)


def compose(
    options: LaunchOptions,
    mounts: Mounts,
    argv: Sequence[str],
    *,
    name: str,
    output: PurePosixPath,
    command: str,
    home: Path,
    gpus: Gpus = Gpus(),  # noqa: B008  # immutable
    working_dir: str | None = None,
) -> RunSpec:
    """The container of a program, with what the launcher's flags say.

    Args:
        options: of which the GPUs do not count.
        mounts: those that the program needs.
        argv: the program.
        name: of the container.
        output: its log, in the container.
        command: for the label, by which it is found again.
        home: the folder that it writes into, for the label.

    Raises:
        UserError: a flag's value.
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
        labels={COMMAND_LABEL: command, EXPERIMENT_LABEL: mounts.place.path(home), GPUS_LABEL: str(gpus)},
        working_dir=working_dir,
    )


def engine_name(text: str) -> str:
    """A folder's name with what engines refuse in a container's replaced."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in text)
    return name if name[:1].isalnum() else f"x{name}"
