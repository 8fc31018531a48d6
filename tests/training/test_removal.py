"""Which checkpoints stay on the disk, and that none goes before a newer one is whole."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import write_named
from scripted import Scripted, settings, train_or_resume
from small import CPU
from torch import Tensor

from nystromformer.training import Trainer
from nystromformer.training.checkpoint import find_checkpoints, find_weights, read_latest, remove_old

PER_EPOCH, EPOCHS = 3, 4


def start(folder: Path, **changes: Any) -> None:
    """Begin a run, or go on with it as the commands do."""
    frequent = {"steps_per_epoch": PER_EPOCH, "minutes_per_checkpoint": 0.0} | changes
    wanted = settings(PER_EPOCH * EPOCHS, **frequent)
    trainer = Trainer(Scripted([1.0] * EPOCHS, steps_per_epoch=PER_EPOCH), wanted, folder, CPU, {})
    train_or_resume(trainer)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("cp-*"))


def of_epochs(*epochs: int) -> list[str]:
    return [f"cp-{epoch:04d}.{kind}" for epoch in epochs for kind in ("cp", "model")]


@pytest.mark.parametrize(
    ("keep", "epochs"), [(None, (0, 1, 2, 3)), (1, (3,)), (2, (2, 3)), (3, (1, 2, 3)), (9, (0, 1, 2, 3))]
)
def test_the_last_epochs_stay_and_none_of_what_lay_between(
    tmp_path: Path, keep: int | None, epochs: tuple[int, ...]
) -> None:
    start(tmp_path, keep_epochs=keep)
    assert names(tmp_path) == of_epochs(*epochs)


def test_a_lower_number_holds_from_the_next_start_on(tmp_path: Path) -> None:
    start(tmp_path)
    start(tmp_path, keep_epochs=1)
    assert names(tmp_path) == of_epochs(3)


def test_within_an_epoch_the_last_ones_between_stay(tmp_path: Path) -> None:
    for name in (*of_epochs(0, 1, 2), *(f"cp-0003-step-0000000{step}.cp" for step in (7, 8, 9))):
        write_named(tmp_path / name)
    remove_old(tmp_path, 2, keep_epochs=2)
    assert names(tmp_path) == sorted([*of_epochs(1, 2), "cp-0003-step-00000008.cp", "cp-0003-step-00000009.cp"])


def test_weights_whose_whole_state_is_lost_do_not_count_as_the_last_epoch(tmp_path: Path) -> None:
    """Where the newest .cp was damaged, the run goes on from the one before it."""
    for name in (*of_epochs(0, 1), "cp-0002.model"):
        write_named(tmp_path / name)
    remove_old(tmp_path, 2, keep_epochs=1)
    assert names(tmp_path) == [*of_epochs(1), "cp-0002.model"]


@pytest.mark.parametrize(
    ("values", "best"), [((0.2, 0.9, 0.5, 0.7), 1), ((0.1, 0.2, 0.3, 0.4), 3), ((0.4, 0.4, 0.4, 0.4), 0)]
)
@pytest.mark.parametrize("stop", [4, 2, 3])
def test_the_best_and_the_last_stay(values: Sequence[float], best: int, stop: int, tmp_path: Path) -> None:
    """Also where the run was stopped after `stop` epochs and resumed."""
    Trainer(Scripted(values), settings(stop, best_metric="score"), tmp_path, CPU, {}).run()
    if stop < 4:
        train_or_resume(Trainer(Scripted(values), settings(4, best_metric="score"), tmp_path, CPU, {}))
    staying = [epoch for epoch, path in find_weights(tmp_path).items() if path.suffix == ".model"]
    assert staying == sorted({best, 3})
    assert [checkpoint.epoch for checkpoint in find_checkpoints(tmp_path)] == [2, 3], "the last two"


def test_what_is_newer_than_the_one_at_which_a_run_stands_goes(tmp_path: Path) -> None:
    """It is damaged, or the run would not have gone back: it must not stay in the place of a whole one."""
    for name in (*of_epochs(0), *(f"cp-0001-step-0000000{step}.cp" for step in (4, 5, 6))):
        write_named(tmp_path / name)
    remove_old(tmp_path, 1, newest=tmp_path / "cp-0001-step-00000004.cp")
    assert names(tmp_path) == sorted([*of_epochs(0), "cp-0001-step-00000004.cp"])


class Killed(BaseException):
    """As SIGKILL: nothing is done after it."""


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
    latest = read_latest(folder, pytest.fail)
    assert latest is not None
    value: Tensor = latest[1]["model"]["weight"]
    return value


def test_killed_between_any_two_file_operations_it_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        operations = FileOperations(patched)
        (tmp_path / "whole").mkdir()
        start(tmp_path / "whole", keep_epochs=2)
    total, expected = operations.count, weight(tmp_path / "whole")
    assert total > 2 * PER_EPOCH * EPOCHS
    for last in range(total):
        folder = tmp_path / str(last)
        folder.mkdir()
        with monkeypatch.context() as patched:
            FileOperations(patched).last = last
            with pytest.raises(Killed):
                start(folder, keep_epochs=2)
        steps = [
            int(name.split("-step-")[1][:8]) for name in names(folder) if "-step-" in name and name.endswith(".cp")
        ]
        ends = [PER_EPOCH * (int(name[3:7]) + 1) for name in names(folder) if name[7:] == ".cp"]
        latest = read_latest(folder, pytest.fail)
        assert (latest is None) == (last == 0)
        assert latest is None or latest[1]["step"] == max(steps + ends)
        start(folder, keep_epochs=2)
        assert torch.equal(weight(folder), expected)
        assert names(folder) == of_epochs(2, 3), f"killed before operation {last}"
