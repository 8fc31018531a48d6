"""The one way to train or go on: which checkpoints stay, what is refused, and that no kill changes the result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dying import Killed
from scripted import Scripted, settings, train, write_named
from small import CPU
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.training import fit
from nystromformer.training.checkpoint import (
    find_checkpoints,
    find_weights,
    read_checkpoint,
    read_newest,
    remove_old,
)

PER_EPOCH, EPOCHS = 3, 4


def start(folder: Path, epochs: int = EPOCHS, **changes: Any) -> None:
    """Begin a run, or go on with it as the commands do."""
    frequent = {"steps_per_epoch": PER_EPOCH, "minutes_per_checkpoint": 0.0} | changes
    wanted = settings(PER_EPOCH * epochs, **frequent)
    train(Scripted([1.0] * epochs, steps_per_epoch=PER_EPOCH), wanted, folder)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("cp-*"))


def of_epochs(*epochs: int) -> list[str]:
    return [f"cp-{epoch:04d}.{kind}" for epoch in epochs for kind in ("cp", "model")]


@pytest.mark.parametrize(("keep", "epochs"), [(None, (0, 1, 2, 3)), (1, (3,)), (3, (1, 2, 3)), (9, (0, 1, 2, 3))])
def test_the_last_epochs_stay_and_none_of_what_lay_between(
    tmp_path: Path, keep: int | None, epochs: tuple[int, ...]
) -> None:
    start(tmp_path, keep_epochs=keep)
    assert names(tmp_path) == of_epochs(*epochs)
    start(tmp_path, keep_epochs=1)
    assert names(tmp_path) == of_epochs(3), "a lower number holds from the next start on"


def test_within_an_epoch_the_last_two_between_stay(tmp_path: Path) -> None:
    for name in (*of_epochs(0, 1, 2), *(f"cp-0003-step-0000000{step}.cp" for step in (7, 8, 9))):
        write_named(tmp_path / name)
    (*_, newest) = find_checkpoints(tmp_path)
    remove_old(newest, keep_epochs=2, best=None)
    assert names(tmp_path) == sorted([*of_epochs(1, 2), "cp-0003-step-00000008.cp", "cp-0003-step-00000009.cp"])


def test_what_is_newer_than_the_one_at_which_a_run_stands_goes(tmp_path: Path) -> None:
    """It is damaged, or the run would not have gone back; its weights do not count as the last epoch."""
    for name in (*of_epochs(0), *(f"cp-0001-step-0000000{step}.cp" for step in (4, 5, 6)), "cp-0001.model"):
        write_named(tmp_path / name)
    remove_old(find_checkpoints(tmp_path)[1], keep_epochs=1, best=None)
    assert names(tmp_path) == sorted([*of_epochs(0), "cp-0001-step-00000004.cp", "cp-0001.model"])


@pytest.mark.parametrize(
    ("values", "best"), [((0.2, 0.9, 0.5, 0.7), 1), ((0.1, 0.2, 0.3, 0.4), 3), ((0.4, 0.4, 0.4, 0.4), 0)]
)
@pytest.mark.parametrize("stop", [4, 2, 3])
def test_the_weights_of_the_best_and_the_last_stay_alone(
    values: Sequence[float], best: int, stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run was killed in epoch `stop` and went on; started again, it is over."""
    wanted = settings(4, best_metric="score")
    if stop < 4:
        with pytest.raises(IndexError):
            train(Scripted(values[:stop]), wanted, tmp_path)
        assert [file.epoch for file in find_checkpoints(tmp_path)] == [stop - 2, stop - 1], "the last two"
    history = train(Scripted(values), wanted, tmp_path).history
    assert [one["metrics"]["score"] for one in history] == list(values)
    assert names(tmp_path) == [f"cp-{epoch:04d}.model" for epoch in sorted({best, 3})]
    monkeypatch.setattr(Scripted, "steps", None)
    assert train(Scripted([]), wanted, tmp_path).history == history
    with pytest.raises(UserError, match=r"holds weights \(cp-0003\.model\) but no \.cp to resume from"):
        train(Scripted(values), settings(5, best_metric="score"), tmp_path)


def test_a_run_that_is_past_its_end_is_done_and_goes_on_with_a_later_one(tmp_path: Path) -> None:
    whole, short = tmp_path / "whole", tmp_path / "short"
    scores = [1.0, 2.0, 3.0, 4.0]
    train(Scripted(scores), settings(4), whole)
    train(Scripted(scores), settings(3), short)
    before = names(short)
    assert len(train(Scripted([]), settings(2), short).history) == 3
    assert names(short) == before
    train(Scripted(scores), settings(4), short)
    assert len(train(Scripted([]), settings(4), short).history) == 4


def test_another_runs_checkpoints_are_refused_by_what_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def begin(steps: int, asked: dict[str, Any], facts: dict[str, Any]) -> None:
        fit(
            lambda begins: (Scripted([1.0, 1.0]), facts | ({"begun": 1} if begins else {})),
            settings(steps),
            tmp_path,
            CPU,
            asked,
            "scripted",
            may_change=("rows",),
        )

    begin(1, {"data": "one", "rows": 2, "shape": (1, 2)}, {"version": 1})
    lines = ('data: "one" in the checkpoint, "other" now', "depth: not set in the checkpoint, 4 now", "shape: ")
    with pytest.raises(UserError, match=r"cp-0000\.cp: the run cannot resume") as refused:
        begin(2, {"data": "other", "depth": 4, "rows": 2, "shape": (1, 3)}, {"version": 2})
    assert all(f"\n  {line}" in str(refused.value) for line in lines)
    with caplog.at_level("INFO"):
        begin(2, {"data": "one", "rows": 3, "shape": [1, 2]}, {"version": 2})
    assert "changed since cp-0000.cp: rows: 2 in the checkpoint, 3 now" in caplog.text
    assert caplog.messages[0] == f"scripted, in {tmp_path}"
    content = read_checkpoint(tmp_path / "cp-0001.model")
    assert (content["version"], content["begun"]) == (2, 1), "what this start does not say stays"
    assert "asked" not in content


class FileOperations:
    """Counts what happens to checkpoints' files, and ends the run before the operation of some number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.last = 0, float("inf")
        for name in ("replace", "unlink"):
            monkeypatch.setattr(Path, name, self._counted(getattr(Path, name)))

    def _counted(self, method: Any) -> Any:
        def counted(path: Path, *args: Any, **options: Any) -> Any:
            if path.name.startswith("cp-"):
                self.count += 1
                if self.count > self.last:
                    raise Killed
            return method(path, *args, **options)

        return counted


def weight(folder: Path) -> Tensor:
    *_, path = find_weights(folder).values()
    value: Tensor = read_checkpoint(path)["model"]["weight"]
    return value


@pytest.mark.parametrize("best", [None, "score"])
def test_killed_between_any_two_file_operations_it_ends_the_same(
    best: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep: dict[str, Any] = {"epochs": 3} | ({"keep_epochs": 2} if best is None else {"best_metric": best})
    with monkeypatch.context() as patched:
        operations = FileOperations(patched)
        start(tmp_path / "whole", **keep)
    total, expected, staying = operations.count, weight(tmp_path / "whole"), names(tmp_path / "whole")
    assert total > 2 * PER_EPOCH * 3
    for last in range(total):
        folder = tmp_path / str(last)
        with monkeypatch.context() as patched:
            FileOperations(patched).last = last
            with pytest.raises(Killed):
                start(folder, **keep)
        steps = [int(name.split("-step-")[1][:8]) for name in names(folder) if "-step-" in name and name.endswith("cp")]
        ends = [PER_EPOCH * (int(name[3:7]) + 1) for name in names(folder) if name[7:] == ".cp"]
        if found := read_newest(folder):
            assert found[1]["step"] == max(steps + ends)
        start(folder, **keep)
        assert torch.equal(weight(folder), expected)
        assert names(folder) == staying, f"killed before operation {last}"
