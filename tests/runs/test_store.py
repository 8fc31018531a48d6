"""A store of finished pieces: resumed after a kill at any moment, nothing of anybody's replaced, damage seen."""

import errno
import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nystromformer.errors import UserError
from nystromformer.files.writing import NewFile
from nystromformer.runs import store as module
from nystromformer.runs.store import Store

FACTS = {"table": "a", "rows": 3}
CHANGES = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "write")
"""Calls of the system that change a disk, of those that Python's own functions make."""


def opened(folder: Path, facts: Any = FACTS, command: str = "run_it.py") -> Store:
    return Store(folder, command, facts, "take another folder")


def work(out: Path, facts: Any = FACTS) -> list[str]:
    """A command with three pieces and two files; the pieces that it had to make."""
    made = []
    with opened(out.with_name("parts"), facts) as store:
        if not store.publish_again(out.parent):
            for name in ("0", "1", "2"):
                if store.pieces.read(name) is None:
                    made.append(name)
                    with store.pieces.write(name) as piece:
                        piece.write(f"content of {name}\n".encode())
            for name in ("first", out.name):
                with NewFile(store.whole / name) as file:
                    file.write(b"".join(store.pieces.read(number) or b"" for number in ("0", "1", "2")))
            store.publish(out.parent, ["first", out.name])
        store.remove()
    return made


WHOLE = b"content of 0\ncontent of 1\ncontent of 2\n"


def dying(number: int) -> None:
    """From now on the process is gone just before it changes the disk for the time of that number, from 0."""
    left = [number]

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not left[0]:
                os._exit(137)
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    for name in CHANGES:
        setattr(os, name, wrapped(getattr(os, name)))
    opens = io.open
    io.open = lambda file, mode="r", *args, **more: (  # type: ignore[assignment]
        opens(file, mode, *args, **more) if "r" in mode else wrapped(opens)(file, mode, *args, **more)
    )


def test_killed_at_any_moment_the_same_command_ends_with_the_same(tmp_path: Path) -> None:
    for number in range(200):
        folder = tmp_path / str(number)
        folder.mkdir()
        pid = os.fork()
        if not pid:
            dying(number)
            work(folder / "out")
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        is_done = (folder / "out").exists() and not (folder / "parts" / "finished").exists()
        if not is_done:
            work(folder / "out")
        assert (folder / "out").read_bytes() == (folder / "first").read_bytes() == WHOLE
        left = {path.name for path in folder.iterdir()} - {"out", "first"}
        assert not left or is_done, f"after change {number}"
        if status == 0:
            break
    assert number > 30


def test_what_is_finished_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(Store, "publish", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            work(tmp_path / "out")
    assert work(tmp_path / "out") == []


def half_done(out: Path) -> Path:
    with opened(out.with_name("parts")) as store:
        for name in ("0", "1", "2"):
            with store.pieces.write(name) as piece:
                piece.write(f"content of {name}\n".encode())
    return out.with_name("parts")


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock", "locks")
    }


@pytest.mark.parametrize("place", ["parts/notes", "parts/mark", "parts/1", "out"])
def test_strangers_are_refused_and_left_alone(tmp_path: Path, place: str) -> None:
    if place in ("parts/mark", "parts/1"):
        half_done(tmp_path / "out")
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("what a user keeps")
    before = tree(tmp_path)
    with pytest.raises(UserError, match=str(tmp_path / place.removesuffix("/notes"))):
        work(tmp_path / "out")
    after = tree(tmp_path)
    assert {path: after.get(path) for path in before if path != "first"} == before


def test_what_appears_meanwhile_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Store.publish
    with monkeypatch.context() as context:
        context.setattr(Store, "publish", lambda *args: ((tmp_path / "out").write_text("theirs"), publish(*args)))
        with pytest.raises(UserError, match="out: was created by something else while this command ran"):
            work(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "theirs"
    with pytest.raises(UserError, match="out: was created by something else while"):
        work(tmp_path / "out")
    (tmp_path / "out").unlink()
    assert work(tmp_path / "out") == []
    assert (tmp_path / "out").read_bytes() == WHOLE


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    **{
        f"a bit at {where:.2f}": lambda content, where=where: (  # type: ignore[misc]
            content[: int(where * len(content))]
            + bytes([content[int(where * len(content))] ^ 16])
            + content[int(where * len(content)) + 1 :]
        )
        for where in np.linspace(0.2, 0.999, 6)
    },
    "emptied": lambda content: b"",
    "cut early": lambda content: content[:9],
    "cut": lambda content: content[:-70],
    "longer": lambda content: content + b"\n",
    "twice": lambda content: content * 2,
    "zeros behind its head": lambda content: content[:50] + bytes(len(content) - 50),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_part_is_made_again_and_it_is_said(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    part = half_done(tmp_path / "out") / "1"
    part.write_bytes(DAMAGES[name](part.read_bytes()))
    caplog.set_level(logging.WARNING)
    assert work(tmp_path / "out") == ["1"]
    assert f"{part}: damaged" in caplog.text
    assert (tmp_path / "out").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"facts": FACTS | {"table": "b"}}, "computed with other table; they were left"),
        ({"facts": {"rows": 4}}, "computed with other rows and table; they were left"),
        ({"facts": FACTS | {"flag": None}}, "computed with other flag; they were left"),
        ({"facts": FACTS | {"flag": 1}}, "computed with other flag; they were left"),
        ({"command": "run_another.py"}, "holds parts that run_it.py made"),
        ({"version": "0.0.9"}, "computed with other version; they were left"),
    ],
)
def test_parts_of_other_work_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], said: str
) -> None:
    folder = half_done(tmp_path / "out")
    before = tree(tmp_path)
    monkeypatch.setattr(module, "__version__", other.pop("version", module.__version__))
    with pytest.raises(UserError, match=said), opened(folder, **other):
        pass
    assert tree(tmp_path) == before


def test_a_part_from_elsewhere_is_made_again(tmp_path: Path) -> None:
    """Another one's place, or another work's part: whole, and not this one."""
    folder = half_done(tmp_path / "out")
    (folder / "1").write_bytes((folder / "0").read_bytes())
    with opened(tmp_path / "other", {"table": "c"}) as other, other.pieces.write("2") as piece:
        piece.write(b"content of 2\n")
    (folder / "2").write_bytes((tmp_path / "other" / "2").read_bytes())
    assert work(tmp_path / "out") == ["1", "2"]
    assert (tmp_path / "out").read_bytes() == WHOLE


@pytest.mark.parametrize("content", [b"", b"[]", json.dumps({"a": 1}).encode(), bytes(1000)])
def test_a_damaged_mark_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = half_done(tmp_path / "out")
    (folder / "mark").write_bytes(content)
    before = tree(tmp_path)
    with pytest.raises(UserError, match="mark: damaged, or not of this command"):
        work(tmp_path / "out")
    assert tree(tmp_path) == before


def test_one_command_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path / "parts") as store:
        with pytest.raises(UserError, match="parts: another command is using it"), opened(tmp_path / "parts"):
            pass
        with store.pieces.write("0") as piece:
            piece.write(b"it goes on")
        pid = os.fork()
        if not pid:  # as the workers of a command
            with store.pieces.write("1") as piece:
                piece.write(b"of a worker")
            os._exit(0)
        os.waitpid(pid, 0)
        assert store.pieces.read("1") == b"of a worker"
        store.remove()
    assert work(tmp_path / "out") == ["0", "1", "2"]


def test_many_at_once_make_one_result(tmp_path: Path) -> None:
    """Of processes that begin together each ends well, or says that another is at work or has done it."""
    pids = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                work(tmp_path / "out")
                status = 0
            except UserError as error:
                status = 2 if "using it" in str(error) or "while this command ran" in str(error) else 1
            finally:
                os._exit(status)
        pids.append(pid)
    statuses = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    assert statuses <= {0, 2}
    assert 0 in statuses
    assert (tmp_path / "out").read_bytes() == WHOLE


def test_a_full_disk_keeps_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = [0]

    def full(self: NewFile, data: bytes) -> None:
        written[0] += len(data)
        if written[0] > 800:
            raise UserError(f"{self.path}: no space left") from OSError(errno.ENOSPC, "full")
        real(self, data)

    real = NewFile.write
    with monkeypatch.context() as context:
        context.setattr(NewFile, "write", full)
        with pytest.raises(UserError, match="no space left"):
            work(tmp_path / "out")
    assert work(tmp_path / "out") == ["2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "out"]
