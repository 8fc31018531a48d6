import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nystromformer.errors import UserError
from nystromformer.training.checkpoint import (
    FORMAT,
    UnreadableCheckpoint,
    between_name,
    epoch_name,
    find_checkpoints,
    load_weights,
    read_checkpoint,
    read_latest,
    remove_leftovers,
    remove_old,
    write_checkpoint,
)


def content(value: float = 1.0) -> dict[str, Any]:
    return {"format": FORMAT, "model": {"weight": torch.full((50, 50), value)}}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    assert torch.equal(read_checkpoint(path)["model"]["weight"], torch.ones(50, 50))
    assert [p.name for p in tmp_path.iterdir()] == ["cp-0000.cp"]


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


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated_files_are_unreadable(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint(content(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(UnreadableCheckpoint, match="truncated or damaged"):
        read_checkpoint(path)


def test_a_flipped_byte_anywhere_is_a_clear_error_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "cp-0000.cp"
    write_checkpoint({"format": FORMAT, "model": {"weight": torch.ones(8)}}, path)
    data = path.read_bytes()
    refused = 0
    for position in range(0, len(data), 3):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            weight = read_checkpoint(path)["model"]["weight"]
        except UserError:
            refused += 1
        else:
            assert torch.equal(weight, torch.ones(8)), "alignment padding may change, weights may not"
    assert refused > 100


class _Bomb:
    """Runs code when it is unpickled the ordinary way."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("import pathlib; pathlib.Path('exploded').touch()",)


@pytest.mark.parametrize("kind", ["archive", "legacy", "bare", "bare, protocol 4"])
def test_code_in_a_pickle_is_refused_and_never_run(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cp-0000.cp"
    if kind.startswith("bare"):
        path.write_bytes(pickle.dumps(_Bomb(), protocol=2 if kind == "bare" else 4))
    else:
        torch.save({**content(), "config": _Bomb()}, path, _use_new_zipfile_serialization=kind == "archive")
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
    torch.save({**content(), "format": 99}, tmp_path / "newer.cp")
    with pytest.raises(UserError, match="format 99, this version reads format 1"):
        read_checkpoint(tmp_path / "newer.cp")


def test_the_order_of_checkpoints() -> None:
    assert epoch_name(99) == "cp-0099"
    assert between_name(3, 1234) == "cp-0003-step-00001234"


def test_the_newest_readable_one_is_found_and_the_damaged_reported(tmp_path: Path) -> None:
    names = ["cp-0000.cp", "cp-0001-step-00000012.cp", "cp-0001-step-00000017.cp", "cp-0001.cp"]
    for number, name in enumerate(names):
        write_checkpoint(content(float(number)), tmp_path / name)
    (tmp_path / "cp-best.cp").write_text("not ours")
    assert [checkpoint.path.name for checkpoint in find_checkpoints(tmp_path)] == names
    reports: list[str] = []
    for name in ("cp-0001.cp", "cp-0001-step-00000017.cp"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:100])
    latest = read_latest(tmp_path, reports.append)
    assert latest is not None
    assert latest[0].name == "cp-0001-step-00000012.cp"
    assert len(reports) == 2
    assert "going back to the checkpoint before it" in reports[0]
    assert sorted(p.name for p in tmp_path.glob("*.damaged")) == [
        "cp-0001-step-00000017.cp.damaged",
        "cp-0001.cp.damaged",
    ]
    for checkpoint in find_checkpoints(tmp_path):
        checkpoint.path.write_bytes(b"")
    with pytest.raises(UserError, match="none of its 2 checkpoints can be read"):
        read_latest(tmp_path, reports.append)


def test_an_empty_folder_has_none_and_weights_alone_are_not_overwritten(tmp_path: Path) -> None:
    assert read_latest(tmp_path, print) is None
    write_checkpoint(content(), tmp_path / "cp-0003.model")
    with pytest.raises(UserError, match=r"cp-0003\.model\) but no \.cp to resume from"):
        read_latest(tmp_path, print)


def test_old_ones_and_leftovers_go(tmp_path: Path) -> None:
    for name in ("cp-0000.cp", "cp-0000-step-00000005.cp", "cp-0001-step-00000012.cp", "cp-0001-step-00000013.cp"):
        write_checkpoint(content(), tmp_path / name)
    (tmp_path / "cp-0001.cp.tmp").write_bytes(b"half")
    remove_leftovers(tmp_path)
    remove_old(tmp_path, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cp-0000.cp", "cp-0001-step-00000013.cp"]


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
