"""An archive read as a stream: nothing is unpacked, and what would leave its folder is refused."""

from __future__ import annotations

import gzip
import posixpath
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from nystromformer.errors import UserError, reading
from nystromformer.reading import too_large

_BLOCK_BYTES = 1 << 20


def archive_files(
    path: Path, wanted: Callable[[tuple[str, ...]], bool], top: str, limit: int
) -> Iterator[tuple[str, tuple[str, ...], bytes]]:
    """The wanted files of a tar.gz.

    Args:
        wanted: whether to read a file, from the parts of its path below the archive's top folder.
        top: name of that folder, which may be missing.
        limit: bytes of a wanted file; a larger one is not read.

    Yields:
        the name for messages, the parts of the path and the content, in the archive's order.

    Raises:
        UserError: the archive is damaged or cut off, a member's path or link would leave the archive's folder, or a
            wanted file is no regular one or larger than `limit`.
    """
    try:
        # Not tarfile's own "r|gz": that does not notice a wrong checksum or a missing end.
        with (
            reading(path),
            gzip.open(path) as content,
            tarfile.open(fileobj=content, mode="r|", errorlevel=2) as archive,
        ):
            for member in archive:
                _refuse_outside(path, member)
                parts = tuple(posixpath.normpath(member.name).split("/"))
                parts = parts[1:] if parts[0] == top else parts
                if member.isdir() or not wanted(parts):
                    continue
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise UserError(f"{path}: {member.name}: expected a regular file, found a link or device")
                if member.size > limit:
                    raise UserError(too_large(f"{path}: {member.name}", "a review", member.size, limit))
                yield f"{path}: {member.name}", parts, file.read()
            # The checksum is at the end.
            while content.read(_BLOCK_BYTES):
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: the archive is damaged or cut off ({error}). Download it again; the official one has 84,125,825 "
            "bytes."
        ) from error


def _refuse_outside(path: Path, member: tarfile.TarInfo) -> None:
    targets = [member.name]
    if member.issym():
        targets.append(posixpath.join(posixpath.dirname(member.name), member.linkname))
    elif member.islnk():
        targets.append(member.linkname)
    for target in targets:
        if target.startswith("/") or posixpath.normpath(target).split("/")[0] == "..":
            what = "path" if target is member.name else f"link to {member.linkname}"
            raise UserError(
                f"{path}: refused, because its member {member.name!r} has a {what} outside of the archive's folder: "
                "this is not the official archive"
            )
