"""A checkpoint's file: proved by its checksum, and never running code."""

import pickle
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import seal

from nystromformer.errors import UserError
from nystromformer.training.archive import FORMAT, UnreadableCheckpoint, read_checkpoint, read_facts, write_checkpoint


def content(value: float = 1.0) -> dict[str, Any]:
    return {"format": FORMAT, "model": {"weight": torch.full((50, 50), value)}}


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


@pytest.mark.parametrize("end", [0, 1, 100, 5000, -3])
def test_truncated_files_are_unreadable(tmp_path: Path, end: int) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(UnreadableCheckpoint, match="no checksum at its end"):
        read_checkpoint(path)
    with pytest.raises(UserError, match=r"cp-0000\.cp: cannot be loaded") if end != -3 else nullcontext():
        read_facts(path)


def test_a_flipped_bit_anywhere_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint({"format": FORMAT, "model": {"weight": torch.ones(8)}}, path)
    data = path.read_bytes()
    for position in range(0, len(data), 3):
        for bit in (1 << position % 8, 0x10):
            path.write_bytes(data[:position] + bytes([data[position] ^ bit]) + data[position + 1 :])
            with pytest.raises(UnreadableCheckpoint, match="damaged"):
                read_checkpoint(path)


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
    for read in (read_checkpoint, read_facts):
        with pytest.raises(UserError):
            read(path)
    assert not (tmp_path / "exploded").exists()


def test_other_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "cp-0000.cp")
    torch.save(torch.ones(3), tmp_path / "tensor.cp")
    with pytest.raises(UserError, match="not a checkpoint of this project"):
        read_checkpoint(tmp_path / "tensor.cp")
    write_checkpoint({**content(), "format": 99}, tmp_path / "newer.cp")
    with pytest.raises(UserError, match=f"expected a checkpoint of format {FORMAT}, found 99"):
        read_checkpoint(tmp_path / "newer.cp")
