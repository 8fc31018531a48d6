"""The log of a container: a file in the experiment folder, or else what the engine can read of it."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from nystromformer.container.engine import Engine, clear_errors
from nystromformer.container.jobs import Job, find_job
from nystromformer.errors import UserError

_SECONDS_BETWEEN_LOOKS = 0.5
_CHUNK_BYTES = 1 << 16
_LAST_LINES = 20


def read_output(engine: Engine, job: Job, lines: int | None = None, begin: int = 0) -> bytes:
    """What the job wrote so far, from the byte `begin` on, or the last `lines` of it."""
    path = local_output(engine, job)
    if path is not None and not path.exists():
        raise UserError(f"{path}: no log yet; `launch.py ps` shows the state of {job.name}")
    content = _through_the_engine(engine, job) if path is None else path.read_bytes()
    return _last_lines(content[begin:], lines)


def output_size(engine: Engine, path: Path | None) -> int:
    """Bytes of a log so far, where this machine sees it; 0 else."""
    return path.stat().st_size if path is not None and engine.is_local and path.exists() else 0


def last_words(engine: Engine, job: Job, begin: int) -> str:
    """What a job that has ended wrote from the byte `begin` of its log on; where not even the log could be opened, what
    bash said of that to the engine."""
    # Of a log that only the engine sees, nobody knows where earlier starts ended.
    lines = None if engine.is_local else _LAST_LINES
    try:
        words = read_output(engine, job, lines, begin).strip()
    except UserError:
        words = b""
    if not words and job.output is not None:
        with clear_errors(f"reading what {job.name} said"):
            words = bytes(engine.api.logs(job.id)).strip()
    return words.decode(errors="replace")


def follow_output(
    engine: Engine, job: Job, write: Callable[[bytes], None], lines: int | None = None, begin: int = 0
) -> Job | None:
    """Pass on the log, and what is added to it until the job ends; returns how it ended, or None where it is gone.

    Args:
        lines: begin with so many of the last ones; None: all.
        begin: leave out so many bytes, which earlier starts wrote.
    """
    path = local_output(engine, job)
    pieces = _file_pieces(engine, job, path, lines, begin) if path is not None else _engine_pieces(engine, job, lines)
    for piece in pieces:
        write(piece)
    return find_job(engine, job.id)


def local_output(engine: Engine, job: Job) -> Path | None:
    """The log as a file of this machine; None where only the engine can read it."""
    path = job.output_path
    return path if path is not None and engine.is_local and job.folder.is_dir() else None


def _file_pieces(engine: Engine, job: Job, path: Path, lines: int | None, begin: int) -> Iterator[bytes]:
    position = begin
    if path.exists() and lines is not None:
        content = path.read_bytes()
        position = len(content)
        yield _last_lines(content, lines)
    while True:
        now = find_job(engine, job.id)  # before the last look, or its last lines would be missed
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                while piece := file.read(_CHUNK_BYTES):
                    position += len(piece)
                    yield piece
        if now is None or not now.is_active:
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _engine_pieces(engine: Engine, job: Job, lines: int | None) -> Iterator[bytes]:
    if job.output is None:
        with clear_errors(f"reading the log of {job.name}"):
            yield from engine.api.logs(job.id, stream=True, follow=True, tail="all" if lines is None else lines)
        return
    if not job.is_active:
        yield read_output(engine, job, lines)
        return
    begin = "+1" if lines is None else str(lines)
    with clear_errors(f"reading the log of {job.name}"):
        program = engine.api.exec_create(job.id, ["tail", "-n", begin, "-F", job.output], stderr=False)
        yield from engine.api.exec_start(program["Id"], stream=True)


def _through_the_engine(engine: Engine, job: Job) -> bytes:
    with clear_errors(f"reading the log of {job.name}"):
        if job.output is None:
            return bytes(engine.api.logs(job.id))
        stream, _ = engine.api.get_archive(job.id, job.output)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            if (file := archive.extractfile(archive.getmembers()[0])) is not None:
                return file.read()
    raise UserError(f"{job.name}: {job.output} is not a file")


def _last_lines(content: bytes, lines: int | None) -> bytes:
    every = content.splitlines(keepends=True)
    return content if lines is None else b"".join(every[max(0, len(every) - lines) :])
