"""The folders of a container: which of the engine's machine it sees, and under which names."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nystromformer.container.options import Mount
from nystromformer.container.scripts import CODE_FOLDER
from nystromformer.errors import UserError
from nystromformer.files.paths import PROJECT

_MOST_LINKS = 200
"""Each is a mount, of which engines and kernels take some hundreds."""


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
        if self.is_here:
            # As this machine follows it: engines take `..` from what is written, links or not.
            return str(local.resolve())
        absolute = Path(os.path.abspath(local))
        if self.remote_root is not None and absolute.is_relative_to(PROJECT):
            return str(PurePosixPath(self.remote_root) / absolute.relative_to(PROJECT).as_posix())
        return str(absolute)


class Mounts:
    """The mounts of a container, as they are found out one by one."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._is_read_only: dict[tuple[str, str], bool] = {}
        self._walked: set[Path] = set()
        self._links = 0

    @property
    def entries(self) -> tuple[Mount, ...]:
        return tuple(Mount(source, target, ro) for (source, target), ro in self._is_read_only.items())

    def add(self, source: Path, target: str, read_only: bool = True) -> None:
        key = self.place.path(source), target
        self._is_read_only[key] = read_only and self._is_read_only.get(key, True)

    def add_code(self, given: str | None) -> None:
        """The code that runs: a folder, this project's where none is given, or for "image" what the image holds."""
        if given == "image":
            return
        code = Path(given or CODE_FOLDER)
        if self.place.is_here and not (code / "nystromformer").is_dir():
            raise UserError(
                f"--code {code}: not a code folder of this project: expected nystromformer and run_*.py in it"
            )
        self.add(code, "/code")

    def views(self, path: Path) -> list[Mount]:
        """Where a container sees one path of this machine, which may be a link: each place as the mount that would show
        it alone."""
        parent, name = (path.parent, path.name) if path.is_symlink() else (path, "")
        source = Path(self.place.path(parent), name)
        return [
            Mount(str(source), str(PurePosixPath(mount.target, source.relative_to(mount.source))), mount.read_only)
            for mount in self.entries
            if source.is_relative_to(mount.source)
        ]

    def follow(self, path: Path, read_only: bool = True) -> Path:
        """Mount what a path in a mounted folder names, at the place that it names, if it is a link that would lead
        nowhere in the container, or elsewhere; returns what it names."""
        while self.place.is_here and path.is_symlink() and path.exists() and (views := self.views(path)):
            named = posixpath.normpath(posixpath.join(posixpath.dirname(views[0].target), path.readlink()))
            path = path.parent / path.readlink()
            if not any(view.target == named and read_only >= view.read_only for view in self.views(path)):
                self._links += 1
                if self._links > _MOST_LINKS:
                    raise UserError(
                        f"{path}: more than {_MOST_LINKS} links lead out of the mounted folders, each of which would "
                        "be a mount. Link the folder that holds the files, or name that instead (--source, --corpora)"
                    )
                self.add(path, named, read_only)
                return path.resolve()
        return path

    def follow_below(self, folder: Path) -> None:
        """Mount, read-only, what a folder names if it is a link, and what all links below it name, and below those."""
        folder = self.follow(folder)
        if not self.place.is_here or folder.resolve() in self._walked:
            return
        self._walked.add(folder.resolve())
        for home, folders, files in os.walk(folder):
            for entry in (Path(home, name) for name in sorted([*folders, *files])):
                if entry.is_symlink() and (content := self.follow(entry)).is_dir():
                    self.follow_below(content)
