"""Finished parts of a command's work: resumed, bound to what they are made from, and never anybody else's."""

import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nystromformer.errors import UserError
from nystromformer.files.parts import MARK, PARTS, Parts, open_parts
from nystromformer.files.writing import write_json, write_text

FACTS = {"seed": 0, "table": "abc"}


@contextmanager
def opened(out: Path, facts: Mapping[str, Any] = FACTS, shared: bool = False) -> Iterator[Parts]:
    with open_parts(out / PARTS, "prepare.py", facts, results(out), shared) as parts:
        yield parts


def results(out: Path) -> list[Path]:
    return [out / "all.txt", out / "manifest.json"]


def work(out: Path, facts: Mapping[str, Any] = FACTS, end_after: int = 9) -> list[str]:
    """A command of three parts; gives those that it makes."""
    made: list[str] = []
    text, manifest = results(out)
    with opened(out, facts) as parts:
        for name in "abc":
            if parts.read(name) is None and len(made) < end_after:
                made.append(name)
                with parts.write(name) as file:
                    file.write(f"{name}{facts['seed']} ".encode())
            if len(made) == end_after:
                write_text(text, "unfinished")
                raise KeyboardInterrupt
        write_text(text, b"".join(parts.read(name) or b"" for name in "abc").decode())
        write_json(manifest, {})
        parts.remove()
    return made


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

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
        setattr(os, name, wrapped(getattr(os, name)))
    opens = io.open
    io.open = lambda file, mode="r", *args, **more: (  # type: ignore[assignment]
        opens(file, mode, *args, **more) if "r" in mode else wrapped(opens)(file, mode, *args, **more)
    )


def test_killed_at_any_moment_the_same_command_ends_with_the_same(tmp_path: Path) -> None:
    for number in range(200):
        out = tmp_path / str(number) / "out"
        if not (pid := os.fork()):
            dying(number)
            work(out)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if (out / PARTS / MARK).exists() or not (out / "manifest.json").exists():
            work(out)
        assert (out / "all.txt").read_text() == "a0 b0 c0 "
        left = sorted(path.name for path in out.iterdir())
        assert [name for name in left if name != PARTS] == ["all.txt", "manifest.json"], f"after change {number}"
        if status == 0:
            break
    assert number > 30


def test_many_at_once_make_one_result(tmp_path: Path) -> None:
    """Of processes that begin together each ends well, or says that another is at work or has done it."""
    pids = []
    for _ in range(8):
        if not (pid := os.fork()):
            status = 1
            try:
                work(tmp_path / "out")
                status = 0
            except UserError as error:
                status = 2 if "using it" in str(error) or "is there already" in str(error) else 1
            finally:
                os._exit(status)
        pids.append(pid)
    statuses = {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
    assert statuses <= {0, 2}
    assert 0 in statuses
    assert (tmp_path / "out" / "all.txt").read_text() == "a0 b0 c0 "


def test_what_is_damaged_is_named_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, end_after=3)
    (tmp_path / PARTS / "a").write_bytes(b"x0 ")
    (tmp_path / PARTS / "b").write_bytes(b"b")
    record = tmp_path / PARTS / "c.part.json"
    record.write_text(record.read_text().replace("3", "4"))
    assert work(tmp_path) == ["a", "b", "c"]
    assert (tmp_path / "all.txt").read_text() == "a0 b0 c0 "
    for name in ("parts/a", "parts/b", "parts/c.part.json"):
        assert str(tmp_path / name) in caplog.text


def test_parts_of_something_else_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, end_after=2)
    with pytest.raises(UserError, match="seed: found 0, expected 1"):
        work(tmp_path, {**FACTS, "seed": 1})
    with (
        pytest.raises(UserError, match=r"command: found 'prepare\.py', expected 'other\.py'"),
        open_parts(tmp_path / PARTS, "other.py", FACTS),
    ):
        pass
    assert work(tmp_path) == ["c"]
    assert not (tmp_path / PARTS).exists()


def test_a_start_that_finished_nothing_is_replaced(tmp_path: Path) -> None:
    with opened(tmp_path):
        pass
    assert work(tmp_path, {"seed": 1}) == ["a", "b", "c"]


def test_nothing_is_left_of_a_first_start_that_fails_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        work(out, end_after=0)
    assert not out.exists()


@pytest.mark.parametrize("name", ["all.txt", "manifest.json", "parts/notes.txt"])
def test_files_of_others_are_refused_and_kept(name: str, tmp_path: Path) -> None:
    write_text(tmp_path / name, "what a user keeps")
    with pytest.raises(UserError, match=Path(name).name), opened(tmp_path):
        pass
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]


def test_a_damaged_mark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path, end_after=2)
    mark = tmp_path / PARTS / MARK
    mark.write_text(mark.read_text().replace("abc", "abd"))
    with pytest.raises(UserError, match=MARK):
        work(tmp_path)


def test_of_two_commands_the_second_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(UserError, match="another command is using it"), opened(tmp_path):
        pass
    with opened(tmp_path), pytest.raises(UserError, match="using it"), opened(tmp_path, shared=True):
        pass


def test_processes_share_a_folder_but_no_part(tmp_path: Path) -> None:
    with opened(tmp_path, shared=True) as one, opened(tmp_path, shared=True) as two:
        with ThreadPoolExecutor(1) as pool:
            with one.alone("a"), two.alone("b"), two.write("b") as file:
                file.write(b"1")
                waiting = pool.submit(two.alone("a").__enter__)
                time.sleep(0.05)
                assert not waiting.done()
            waiting.result(10)
        assert one.read("b") == b"1"
        with pytest.raises(UserError, match="using it"), opened(tmp_path):
            pass
        with pytest.raises(UserError, match="seed"), opened(tmp_path, {"seed": 1}, True):
            pass
    with opened(tmp_path) as parts:
        assert parts.names() == ["b"]


def test_a_part_has_files_anywhere_and_figures(tmp_path: Path) -> None:
    files = {tmp_path / name: write_text(tmp_path / name, name) for name in ("x.bin", "y.bin")}
    with opened(tmp_path) as parts:
        made = parts.add("both", files, {"rows": 3})
        assert parts.find("both", verify=True) == made
        assert made.figures == {"rows": 3}
        assert sorted(made.files) == ["../x.bin", "../y.bin"]
        (tmp_path / "x.bin").write_text("z.bin")
        assert parts.find("both") == made
        assert parts.find("both", verify=True) is None
        parts.discard("both")
        assert not (tmp_path / "y.bin").exists()
        assert parts.find("both") is None
