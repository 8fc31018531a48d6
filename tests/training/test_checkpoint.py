"""A checkpoint's file: proved by its checksum, never running code; the one to go on from; weights that fit."""

import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import write_named
from torch import nn

from nystromformer.errors import UserError
from nystromformer.training.checkpoint import (
    FORMAT,
    UnreadableCheckpoint,
    find_checkpoints,
    load_weights,
    read_checkpoint,
    read_newest,
    write_checkpoint,
    write_weights,
)


def content(value: float = 1.0) -> dict[str, Any]:
    return {"format": FORMAT, "model": {"weight": torch.full((50, 50), value)}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["cp-0000.cp"]
    body, _, end = path.read_bytes().rpartition(b"\nsha256 ")
    assert read_checkpoint(path)["sha256"] == sha256(body).hexdigest() == end.decode().strip()
    for found in (read_checkpoint(path), torch.load(path, weights_only=True)):  # torch reads the file as it is
        assert torch.equal(found["model"]["weight"], torch.ones(50, 50))


def test_equal_facts_and_weights_are_equal_bytes(tmp_path: Path) -> None:
    """Whichever of its texts and lists are one object, such as after it was read."""
    name = "".join(["nys", "trom"])
    one = content() | {"name": "nystrom", "again": ["nystrom", {"key": "nystrom"}], "progress": 1, "asked": {}}
    other = content() | {"name": name, "again": [name, {"key": name}], "progress": 2, "asked": {"more": 1}}
    write_weights(one, tmp_path / "cp-0000.model")
    write_weights(other, tmp_path / "cp-0001.model")
    first = (tmp_path / "cp-0000.model").read_bytes()
    assert first == (tmp_path / "cp-0001.model").read_bytes()
    write_weights(read_checkpoint(tmp_path / "cp-0000.model"), tmp_path / "cp-0002.model")
    assert first == (tmp_path / "cp-0002.model").read_bytes()


@pytest.mark.parametrize("end", [0, 1, 100, 5000, -3])
def test_truncated_files_are_unreadable(tmp_path: Path, end: int) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    path.write_bytes(path.read_bytes()[:end])
    with pytest.raises(UnreadableCheckpoint, match="no checksum at its end"):
        read_checkpoint(path)


def test_a_flipped_bit_anywhere_is_proved(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint({"format": FORMAT, "model": {"weight": torch.ones(8)}}, path)
    data = path.read_bytes()
    for position in range(0, len(data), 11):
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
            data = path.read_bytes()  # as somebody who crafts a checkpoint would
            path.write_bytes(data + f"\nsha256 {sha256(data).hexdigest()}\n".encode())
    with pytest.raises(UserError):
        read_checkpoint(path)
    assert not (tmp_path / "exploded").exists()


def test_other_files_are_named_for_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "cp-0000.cp")
    torch.save(torch.ones(3), tmp_path / "tensor.cp")
    with pytest.raises(UserError, match="not a checkpoint of this project"):
        read_checkpoint(tmp_path / "tensor.cp")


def test_the_newest_readable_one_is_found_and_the_damaged_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_newest(tmp_path) is None
    names = ["cp-0000.cp", "cp-0001-step-00000012.cp", "cp-0001-step-00000017.cp", "cp-0001.cp"]
    for number, name in enumerate(names):
        write_named(tmp_path / name, content(float(number)))
    (tmp_path / "cp-best.cp").write_text("not ours")
    assert [checkpoint.path.name for checkpoint in find_checkpoints(tmp_path)] == names
    for name in ("cp-0001.cp", "cp-0001-step-00000017.cp"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    newest = read_newest(tmp_path)
    assert newest is not None
    assert newest[0].path.name == "cp-0001-step-00000012.cp"
    assert caplog.text.count("going back to the checkpoint before it") == 2
    for checkpoint in find_checkpoints(tmp_path):
        checkpoint.path.write_bytes(b"")
    with pytest.raises(UserError, match="none of its 4 checkpoints can be read"):
        read_newest(tmp_path)


def test_every_difference_of_architecture_is_listed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    weights = dict(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).state_dict()) | {"extra": torch.ones(1)}
    del weights["1.bias"]
    with pytest.raises(UserError) as error:
        load_weights(model, weights, Path("x.model"))
    for line in (
        "0.weight: the model has (4, 3), the checkpoint (5, 3)",
        "0.bias: the model has (4,), the checkpoint (5,)",
        "1.weight: the model has (2, 4), the checkpoint (2, 5)",
        "1.bias: missing from the checkpoint",
        "extra: not in the model",
    ):
        assert line in str(error.value)
