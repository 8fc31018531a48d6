"""Which checkpoint a run goes on from, and whether weights are those of a model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_named
from torch import nn

from nystromformer.errors import UserError
from nystromformer.training.archive import FORMAT, write_checkpoint
from nystromformer.training.checkpoint import find_checkpoints, read_latest
from nystromformer.training.fitting import load_weights


def content(value: float = 1.0) -> dict[str, Any]:
    return {"format": FORMAT, "model": {"weight": torch.full((50, 50), value)}}


def test_the_newest_readable_one_is_found_and_the_damaged_reported(tmp_path: Path) -> None:
    names = ["cp-0000.cp", "cp-0001-step-00000012.cp", "cp-0001-step-00000017.cp", "cp-0001.cp"]
    for number, name in enumerate(names):
        write_named(tmp_path / name, content(float(number)))
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
    for checkpoint in find_checkpoints(tmp_path):
        checkpoint.path.write_bytes(b"")
    with pytest.raises(UserError, match="none of its 4 checkpoints can be read"):
        read_latest(tmp_path, reports.append)


def test_an_empty_folder_has_none_and_weights_alone_are_not_overwritten(tmp_path: Path) -> None:
    assert read_latest(tmp_path, print) is None
    write_checkpoint(content(), tmp_path / "cp-0003.model")
    with pytest.raises(UserError, match=r"cp-0003\.model\) but no \.cp to resume from"):
        read_latest(tmp_path, print)


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
