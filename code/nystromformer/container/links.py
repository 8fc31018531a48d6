"""Links that lead out of a mounted folder. In a container they lead nowhere unless what they name is mounted, too, at
the place that they name."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nystromformer.container.compose import Mounts
from nystromformer.errors import UserError

_MOST_LINKS = 200
"""Each is a mount, of which engines and kernels take some hundreds."""
_CONTAINERS_OWN = (
    *("/bin", "/code", "/data-preprocessing", "/dev", "/etc", "/home/nystrom", "/lib", "/opt/venv", "/proc", "/run"),
    *("/sbin", "/sys", "/usr/bin", "/usr/lib", "/usr/local", "/var/lib"),
)
_NOTHING_BELOW = ("/code", "/data-preprocessing", "/dev", "/proc", "/sys")


def refuse_own(target: str, what: str) -> None:
    """Refuse to mount anything over what a container needs.

    Args:
        target: in the container.
        what: leads there, for the message.

    Raises:
        UserError: `target` is, or holds, such a folder.
    """
    path = PurePosixPath(target)
    hides = any(PurePosixPath(own).is_relative_to(path) for own in _CONTAINERS_OWN)
    is_below = any(path.is_relative_to(own) for own in _NOTHING_BELOW)
    if hides or is_below:
        where = "elsewhere" if is_below else "further below, or elsewhere"
        raise UserError(
            f"{what}: leads to {target}, which in a container is the container's own. Name a folder {where}"
        )


@dataclass(frozen=True)
class Located:
    """A file or folder of this machine, and what it is called in the container."""

    path: Path
    inside: str

    def __truediv__(self, name: str) -> Located:
        return Located(self.path / name, posixpath.join(self.inside, name))


class LinkedMounts:
    """Adds to the mounts of one container what links name."""

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = mounts
        self._count = 0
        self._walked: set[Path] = set()

    def follow(self, link: Located, root: Located, read_only: bool) -> Located:
        """Mount what a path names if it is a link out of a mounted folder.

        Args:
            link: a link or not; nothing is done where it leads nowhere.
            root: the mounted folder that it is in.
            read_only: whether to mount so.

        Returns:
            Where its content is.

        Raises:
            UserError: it cannot be mounted there, or there are too many links.
        """
        if not link.path.is_symlink() or not link.path.exists():
            return link
        content, above = link.path.resolve(), PurePosixPath(link.inside).parent
        inside = posixpath.normpath(str(above / link.path.readlink()))
        # In the container, too: an absolute link may stay in the folder here and not there.
        stays = PurePosixPath(inside).is_relative_to(root.inside)
        stays = stays and content.is_relative_to(root.path.resolve())
        if not stays and not self._mounts.shows(content, inside, read_only):
            refuse_own(inside, f"the link {link.path}")
            self._count += 1
            if self._count > _MOST_LINKS:
                raise UserError(
                    f"{root.path}: more than {_MOST_LINKS} links lead out of it, each of which would be a mount. Link "
                    "the folder that holds the files, or name that instead (--source, --corpora)"
                )
            self._mounts.add(link.path, inside, read_only)
        return Located(content, inside)

    def follow_below(self, folder: Located, but: Collection[str] = ()) -> None:
        """Mount, read-only, what all links below a folder name, and those below what they name; not those of the names
        `but` in the folder itself."""
        pending = [(folder, folder, frozenset(but))]
        while pending:
            here, root, left_out = pending.pop()
            if (real := here.path.resolve()) in self._walked:
                continue
            self._walked.add(real)
            for entry in _entries(here.path):
                if entry.name in left_out or not (entry.is_symlink() or entry.is_dir()):
                    continue
                content = self.follow(here / entry.name, root, read_only=True)
                if content.path.is_dir():
                    is_out = not content.path.is_relative_to(root.path.resolve())
                    pending.append((content, content if is_out else root, frozenset()))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Nothing of a folder that cannot be read: what needs it says so."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
