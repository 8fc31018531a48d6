"""A checkpoint's file: proved by its checksum, never running code, and not condemned for what the machine does."""

import builtins
import errno
import io
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import put_in_the_place_of, raising, seal

from nystromformer.errors import UserError
from nystromformer.training.archive import (
    FORMAT,
    UnreadableCheckpoint,
    looks_whole,
    read_checkpoint,
    read_facts,
    write_checkpoint,
)


def content(value: float = 1.0) -> dict[str, Any]:
    return {"format": FORMAT, "run_id": "this run", "model": {"weight": torch.full((50, 50), value)}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(50, 50))
    assert [p.name for p in tmp_path.iterdir()] == ["cp-0000.cp"]
    for mmap in (False, True):  # torch reads the file as it is
        weights = torch.load(path, weights_only=True, mmap=mmap)["model"]
        assert torch.equal(weights["weight"], torch.ones(50, 50))


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(1.0), path)
    # A device that is always full stands where the temporary file goes.
    (tmp_path / "cp-0000.cp.tmp").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"cp-0000\.cp: the checkpoint could not be written: no space left"):
        write_checkpoint(content(2.0), path)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(50, 50))
    assert not (tmp_path / "cp-0000.cp.tmp").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        write_checkpoint(content(), tmp_path / "missing" / "cp-0000.cp")


@pytest.mark.parametrize("end", [0, 1, 100, 5000, -3])
def test_truncated_files_are_unreadable(tmp_path: Path, end: int) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    path.write_bytes(path.read_bytes()[:end])
    for read in (read_checkpoint, read_facts):
        with pytest.raises(UnreadableCheckpoint, match="no checksum at its end"):
            read(path)
    assert not looks_whole(path)


def test_a_flipped_bit_anywhere_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint({"format": FORMAT, "model": {"weight": torch.ones(8)}}, path)
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        for bit in (1 << position % 8, 0x10):
            path.write_bytes(data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :])
            with pytest.raises(UnreadableCheckpoint, match="damaged"):
                read_checkpoint(path)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
@pytest.mark.parametrize("when", ["stat", "open", "read"])
def test_a_fault_of_the_machine_proves_nothing(
    tmp_path: Path, number: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    with monkeypatch.context() as patched:
        fail(patched, path, number, when)
        for read in (read_checkpoint, read_facts):
            with pytest.raises(UserError, match=rf"cp-0000\.cp: cannot be read: {os.strerror(number)}") as error:
                read(path)
            assert not isinstance(error.value, UnreadableCheckpoint)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(50, 50))


def fail(patched: pytest.MonkeyPatch, path: Path, number: int, when: str) -> None:
    """Let what is done with a file fail with an error number."""

    class Failing(io.FileIO):
        def readinto(self, *_: Any) -> int:
            raise OSError(number, os.strerror(number))

        readall = read = readinto  # type: ignore[assignment]

    def opened(true_open: Any, file: Any, *args: Any, **options: Any) -> Any:
        if str(file) != str(path):
            return true_open(file, *args, **options)
        if when == "open":
            raise OSError(number, os.strerror(number), str(file))
        return Failing(file)

    def status(self: Path, **options: Any) -> os.stat_result:
        if self == path:
            raise OSError(number, os.strerror(number), str(self))
        return os.stat(self, **options)

    if when == "stat":
        patched.setattr(Path, "stat", status)
        return
    for module in (io, builtins):
        patched.setattr(module, "open", partial(opened, open))


def test_a_lack_of_memory_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")):
        monkeypatch.setattr(torch, "load", raising(error))
        with pytest.raises(UserError, match=r"cp-0000\.cp: not enough memory") as caught:
            read_checkpoint(path)
        assert not isinstance(caught.value, UnreadableCheckpoint)


@pytest.mark.parametrize("kind", ["folder", "fifo", "dangling link", "link to itself", "empty zip", "empty"])
def test_what_is_no_file_or_has_nothing_in_it_is_no_checkpoint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cp-0000.cp"
    put_in_the_place_of(path, kind)
    with pytest.raises(UnreadableCheckpoint):
        read_checkpoint(path)
    with pytest.raises(UnreadableCheckpoint):
        read_facts(path)


class _Bomb:
    """Runs code when it is unpickled the ordinary way."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


@pytest.mark.parametrize("kind", ["archive", "with a checksum", "legacy", "bare", "bare, protocol 4"])
def test_code_in_a_pickle_is_refused_and_never_run(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cp-0000.cp"
    if kind.startswith("bare"):
        path.write_bytes(pickle.dumps(_Bomb(), protocol=2 if kind == "bare" else 4))
    else:
        torch.save({**content(), "config": _Bomb()}, path, _use_new_zipfile_serialization=kind != "legacy")
        if kind == "with a checksum":
            seal(path, path.read_bytes())
    with pytest.raises(UserError, match="refused") as error:
        read_checkpoint(path)
    assert not isinstance(error.value, UnreadableCheckpoint), "no earlier checkpoint is taken instead"
    assert not (tmp_path / "exploded").exists()


def test_other_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "cp-0000.cp")
    torch.save(torch.ones(3), tmp_path / "tensor.cp")
    with pytest.raises(UserError, match="not a checkpoint of this project"):
        read_checkpoint(tmp_path / "tensor.cp")
    write_checkpoint({**content(), "format": 99}, tmp_path / "newer.cp")
    with pytest.raises(UserError, match="format 99, this version reads format 2"):
        read_checkpoint(tmp_path / "newer.cp")


def test_what_torch_says_of_the_system_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(content(), tmp_path / "cp-0000.cp")
    error = RuntimeError("unable to open file <cp-0000.cp> in read-only mode: Too many open files (24)")
    monkeypatch.setattr(torch, "load", raising(error))
    with pytest.raises(UserError, match="cannot be read: Too many open files") as caught:
        read_facts(tmp_path / "cp-0000.cp")
    assert not isinstance(caught.value, UnreadableCheckpoint)
