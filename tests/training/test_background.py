"""Work beside the training: the first checkpoint waits for it, and its failure ends the run."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from forking import Forked, as_torchrun
from small import CPU, write_experiment

from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.run import training_settings
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training import Group, Trainer, join_group
from nystromformer.training.background import Background
from nystromformer.training.log import read_log


def trainer(experiment: Experiment, dataset_folder: Path) -> Trainer:
    experiment.checkpoints.mkdir(exist_ok=True)
    model = PretrainingModel(experiment.config.model, experiment.config.pretraining_setting.objectives)
    pretraining = Pretraining(model, experiment.config, experiment.dataset(dataset_folder), CPU)
    return Trainer(pretraining, training_settings(experiment.config), experiment.checkpoints, CPU, {})


def test_the_first_checkpoint_waits_and_the_steps_do_not(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path, pretraining_setting__epoch=1)
    run = trainer(experiment, dataset_folder)
    seen: list[list[Path]] = []

    def work(stop: threading.Event) -> None:
        while run.state.step < 10:
            assert not stop.wait(0.01)
        stop.wait(0.3)
        seen.append(list(experiment.checkpoints.glob("cp-*")))

    run.background = Background(work)
    assert run.run() is None
    assert seen == [[]]
    assert [path.name for path in sorted(experiment.checkpoints.glob("cp-*"))] == ["cp-0000.cp", "cp-0000.model"]


def test_a_failure_ends_the_run_at_once(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path, pretraining_setting__batches_per_epoch=1000)
    run = trainer(experiment, dataset_folder)

    def work(stop: threading.Event) -> None:
        while run.state.step < 2:
            assert not stop.wait(0.01)
        raise UserError("the rows are damaged")

    run.background = Background(work)
    with pytest.raises(UserError, match="the rows are damaged"):
        run.run()
    assert run.state.step < 900
    assert not list(experiment.checkpoints.glob("cp-*"))


def test_a_checkpoint_that_is_due_is_left_out_until_the_work_is_over(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path, pretraining_setting__minutes_per_checkpoint=1e-6)
    run = trainer(experiment, dataset_folder)

    def work(stop: threading.Event) -> None:
        for _ in range(1000):  # not for ever, should a step wait for it
            if run.state.step >= 5 or stop.wait(0.01):
                return

    saved: list[int] = []
    save = run._save_between

    def save_between(log: Any) -> None:
        saved.append(run.state.step)
        save(log)

    run.background, run._save_between = Background(work), save_between  # type: ignore[method-assign]
    assert run.run() is None
    assert min(saved) >= 5
    assert len(saved) > 5, "from then on they are written again"


class StoppedAt:
    """Work that the signal does not end, in a run that gets it after some steps."""

    def __init__(self, run: Trainer, step: int, seconds: float, error: UserError | None = None) -> None:
        self.run, self.step, self.seconds, self.error = run, step, seconds, error

    def __call__(self, stop: threading.Event) -> None:
        while self.run.state.step < self.step:
            assert not stop.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(self.seconds)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("step", [2, 10], ids=["within an epoch", "while an epoch's end waits"])
def test_a_stop_does_not_wait_for_ever(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nystromformer.training.background.SECONDS_AFTER_A_STOP", 0.2)
    caplog.set_level("INFO")
    experiment = write_experiment(tmp_path)
    run = trainer(experiment, dataset_folder)
    run.background = Background(StoppedAt(run, step, 60), "the reading")
    assert run.run() == signal.SIGTERM
    assert step <= run.state.step <= 10
    run.background.close()
    assert not list(experiment.checkpoints.glob("cp-*"))
    assert "without a checkpoint of this start: the reading was not finished" in caplog.text
    assert [r["type"] for r in read_log(experiment.checkpoints / "log.jsonl")][-1] == "stop"


def test_a_stop_that_waits_a_little_has_its_checkpoint(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path)
    run = trainer(experiment, dataset_folder)
    run.background = Background(StoppedAt(run, 10, 0.8))
    assert run.run() == signal.SIGTERM
    assert [path.name for path in experiment.checkpoints.glob("cp-*")] == [f"cp-0000-step-{run.state.step:08d}.cp"]


def test_what_fails_after_a_stop_is_told(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path)
    run = trainer(experiment, dataset_folder)
    run.background = Background(StoppedAt(run, 2, 0.8, UserError("the rows are damaged")))
    with pytest.raises(UserError, match="the rows are damaged"):
        run.run()
    assert not list(experiment.checkpoints.glob("cp-*"))


def test_the_failure_of_one_process_is_everybodys(tmp_path: Path) -> None:
    """At once, though the work of the other one goes on."""

    def work() -> int:
        with join_group() as group:

            def read(stop: threading.Event) -> None:
                stop.wait(0.7 if group.rank else 100)
                if group.rank:
                    raise UserError("the rows are damaged")

            background = Background(read, "the verification")
            try:
                background.require(group)
            except UserError as error:
                still_reads = background.is_pending == (group.rank == 0)
                background.close()
                return 3 if str(error) == "process 1: the rows are damaged" and still_reads else 4
            return 5

    processes = [Forked(work, tmp_path / "log", environment) for environment in as_torchrun(2)]
    assert [each.wait(60) for each in processes] == [3, 3], (tmp_path / "log").read_text()
    assert (tmp_path / "log").read_text().count("waiting for the verification") == 1


def test_two_processes_give_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal reaches one of them, and the work is another's."""
    monkeypatch.setattr("nystromformer.training.background.SECONDS_AFTER_A_STOP", 0.2)

    def work() -> int:
        with join_group() as group:
            background = Background(None if group.rank else lambda stop: stop.wait(100))
            ended = background.wait(group, lambda: group.rank == 1)
            background.close()
            return 4 if ended else 3

    processes = [Forked(work, tmp_path / "log", environment) for environment in as_torchrun(2)]
    assert [each.wait(60) for each in processes] == [3, 3], (tmp_path / "log").read_text()


def test_nobody_waits_for_what_was_closed() -> None:
    background = Background(lambda stop: stop.wait(60))
    background.close()
    background.require(Group())
    assert not background.failed


def test_what_failed_first_is_explained_by_what_the_work_finds() -> None:
    """Zeroed rows, say, have nothing to predict, which is known before their sum is."""
    may_end = threading.Event()

    def work(stop: threading.Event) -> None:
        may_end.wait()
        raise UserError("train.tokens.bin: damaged")

    background = Background(work)
    threading.Timer(0.05, may_end.set).start()
    with pytest.raises(UserError, match="damaged"), background.explaining():
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), Background().explaining():
        raise ZeroDivisionError
