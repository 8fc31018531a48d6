"""float16: a step whose loss is infinite is left out by the loss scaler; a loss that stays so ends the run."""

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import Scripted, settings
from scripted import train as fit
from small import CPU

from nystromformer.training import Device, Step, TrainingSettings
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log
from nystromformer.training.optim import Diverged

FP16 = Device(torch.device("cpu"), torch.float16)
STEPS = 8


SHORT = settings(STEPS, steps_per_epoch=STEPS, steps_per_report=4, learning_rate=1e-3)


def train(
    folder: Path, infinite: Collection[int], device: Device = FP16, wanted: TrainingSettings = SHORT
) -> tuple[Scripted, list[dict[str, Any]]]:
    """A run of one epoch, and the reports in its log."""
    scripted = Scripted([1.0], infinite, wanted.steps_per_epoch)
    fit(scripted, wanted, folder, device)
    return scripted, [record for record in read_log(folder / "log.jsonl") if record["type"] == "train"]


class _Until(Scripted):
    """Its steps end early, as by a crash between two of them."""

    def __init__(self, last: int, infinite: Collection[int]) -> None:
        super().__init__([1.0], infinite, STEPS)
        self._last = last

    def steps(self, first: int, last: int) -> Iterator[Step]:
        return super().steps(first, min(last, self._last))


def test_a_step_that_is_left_out_is_not_in_the_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        scripted, reports = train(tmp_path, {1, 6})
    assert [report["steps_left_out"] for report in reports] == [1, 1]
    # Squares of a weight near 1 times 1/64, 3/64 and 1/64; then 2/64, 3/64 and 2/64.
    expected = [(1 + 9 + 1) / 3 / 64**2, (4 + 9 + 4) / 3 / 64**2]
    assert [report["loss"] for report in reports] == pytest.approx(expected, rel=0.05)
    assert [report["loss_scale"] for report in reports] == [2**15, 2**14]
    assert scripted.model.weight.isfinite().all()  # type: ignore[operator, union-attr]
    assert "1 steps left out (float16 overflow, loss scale 32768)" in caplog.text
    assert read_checkpoint(tmp_path / "cp-0000.cp")["optimizer"]["state"][0]["step"] == STEPS - 2


def test_the_weights_do_not_move_in_it(tmp_path: Path) -> None:
    begun = _Until(STEPS - 1, set())
    fit(begun, SHORT, tmp_path / "before", FP16)
    scripted, _ = train(tmp_path, {STEPS - 1})
    assert torch.equal(scripted.model.weight, begun.model.weight)  # type: ignore[arg-type]


def test_a_report_of_none_but_such_steps_has_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        _, reports = train(tmp_path, range(4))
    assert "loss" not in reports[0]
    assert (reports[0]["step"], reports[0]["steps_left_out"]) == (4, 4)
    assert math.isfinite(reports[1]["loss"])
    assert "step 4/8: no loss" in caplog.text


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_checkpoint_between_two_reports_remembers_what_was_left_out(tmp_path: Path, left: int) -> None:
    """Stopped after `left` steps and resumed, it reports as if it had not been stopped."""
    _, expected = train(tmp_path / "whole", {0, 1})
    wanted = replace(SHORT, minutes_per_checkpoint=0.0)
    fit(_Until(left + 1, {0, 1}), wanted, tmp_path / "parts", FP16)
    _, reports = train(tmp_path / "parts", {0, 1}, wanted=wanted)
    for key in ("step", "loss", "steps_left_out", "loss_scale"):
        assert [report[key] for report in reports] == [report[key] for report in expected]


def test_a_loss_that_stays_infinite_ends_the_run(tmp_path: Path) -> None:
    """The scale falls by half each time, from 2^16 to below 2^-10."""
    with pytest.raises(Diverged, match=r"the loss scale fell to .* at step 29"):
        train(tmp_path, range(2, 100), wanted=settings(100, steps_per_epoch=100, learning_rate=1e-3))
    assert not list(tmp_path.glob("cp-*"))


def test_without_a_scaler_one_such_step_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match="loss is not a finite number at step 4"):
        train(tmp_path, {1}, CPU)
