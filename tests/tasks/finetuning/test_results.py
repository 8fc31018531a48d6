"""What a run reached comes from its checkpoints: no damage to log or result changes it or removes a file."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from finetuning import copy_of, finetune, sweep, write_sst2
from small import CPU

from nystromformer.errors import UserError
from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.finetuning import run as finetuning_run
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.training.checkpoint import find_checkpoints
from nystromformer.training.loop import Trainer

ACCURACIES = (0.9, 0.1, 0.5)
"""The best of the epochs is the first."""
KEPT = {"cp-0000.model", "cp-0002.model"}
LOSE = Callable[[bytes], bytes]


class Killed(BaseException):
    """As SIGKILL: nothing is done after it."""


@dataclass(frozen=True)
class Place:
    """A copy of an experiment with a run, and its data."""

    experiment: Path
    glue: Path

    @property
    def run(self) -> Path:
        (folder,) = (self.experiment / "model" / "glue" / "SST-2").glob("cp-*")
        return folder

    def finetune(self, **changes: Any) -> Run:
        """The result of the command, in which an epoch's validation is as scripted."""
        done = {checkpoint.epoch for folder in self._runs() for checkpoint in find_checkpoints(folder)}
        accuracies = iter(ACCURACIES[max(done, default=-1) + 1 :])
        definition = Glue(find_tasks("SST-2")[0], self.glue)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Glue, "metrics", lambda *_: {"accuracy": next(accuracies)})
            experiment = open_experiment(self.experiment)
            (result,) = finetune(experiment, definition, sweep(epochs=3, **changes), CPU).results
        return result

    def _runs(self) -> list[Path]:
        return list((self.experiment / "model" / "glue" / "SST-2").glob("cp-*"))

    @property
    def contents(self) -> dict[str, bytes]:
        files = [path for path in sorted(self.run.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.run)): path.read_bytes() for path in files}

    @property
    def weights(self) -> set[str]:
        return {path.name for path in self.run.glob("cp-*")}


def killed(place: Place, method: str, after: int) -> None:
    """Run the command until a method of the trainer or a function of a run was called so many times."""
    owner: Any = Trainer if hasattr(Trainer, method) else finetuning_run
    original, calls = getattr(owner, method), []

    def counted(*args: Any) -> Any:
        if len(calls) == after:
            raise Killed
        calls.append(None)
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, counted)
        with pytest.raises(Killed):
            place.finetune()


@pytest.fixture(scope="module")
def originals(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """A finished run, one killed when its second epoch had its checkpoint, and one before its record."""
    folder = tmp_path_factory.mktemp("results")
    glue = write_sst2(folder / "glue")
    places = {name: Place(folder / name, glue) for name in ("finished", "halfway", "unrecorded")}
    for place in places.values():
        copy_of(source, place.experiment)
    places["finished"].finetune()
    killed(places["halfway"], "_end_epoch", 2)
    killed(places["unrecorded"], "_reached", 0)
    return places


@pytest.fixture
def place(originals: dict[str, Place], tmp_path: Path) -> Callable[[str], Place]:
    def copied(name: str) -> Place:
        shutil.copytree(originals[name].experiment, tmp_path / name)
        return Place(tmp_path / name, originals[name].glue)

    return copied


DAMAGES: dict[str, LOSE] = {
    "a better epoch": lambda log: log.replace(b'"accuracy": 0.1', b'"accuracy": 0.99'),
    "cut": lambda log: log[: len(log) // 2],
}


def facts(result: Run) -> list[tuple[int, float]]:
    return [(epoch.epoch, epoch.metrics["accuracy"]) for epoch in result.epochs]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_log_changes_no_result_of_a_resumed_run(damage: LOSE, place: Callable[[str], Place]) -> None:
    run, whole = place("halfway"), place("finished")
    log = run.run / "log.jsonl"
    log.write_bytes(damage(log.read_bytes()))
    result = run.finetune()
    assert facts(result) == list(enumerate(ACCURACIES))
    assert result.best.epoch == 0
    assert result == read_run(run.run)
    assert result.epochs == getattr(read_run(whole.run), "epochs", None)
    assert run.weights == KEPT


def test_a_lost_result_is_made_of_the_last_weights(place: Callable[[str], Place]) -> None:
    run = place("finished")
    before = read_run(run.run)
    for name in ("log.jsonl", "result.json"):
        (run.run / name).unlink()
    shutil.rmtree(run.run / "predictions")
    assert before is not None
    assert run.finetune().epochs == before.epochs
    assert run.weights == KEPT


def test_a_changed_result_is_refused_and_nothing_changes(place: Callable[[str], Place]) -> None:
    run = place("finished")
    path = run.run / "result.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    before = run.contents
    with pytest.raises(UserError, match=r"result\.json: .*modified.* Remove it, and the same command writes it again"):
        run.finetune()
    assert run.contents == before
    path.unlink()
    assert facts(run.finetune()) == list(enumerate(ACCURACIES)), "as the message says"
    assert run.weights == KEPT


def test_a_finished_run_is_only_read(place: Callable[[str], Place]) -> None:
    run = place("finished")
    before = run.contents
    run.finetune()
    assert run.contents == before


def test_a_kill_before_the_record_is_made_up_for(place: Callable[[str], Place]) -> None:
    run = place("unrecorded")
    assert "result.json" not in run.contents
    assert run.weights == KEPT
    assert facts(run.finetune()) == list(enumerate(ACCURACIES))
    assert run.weights == KEPT


def test_predictions_that_are_gone_are_made_again(place: Callable[[str], Place]) -> None:
    run = place("finished")
    path = run.run / "predictions" / "dev.tsv"
    whole = path.read_bytes()
    (path.parent / "notes.txt").write_text("mine")
    path.unlink()
    result = run.finetune()
    assert path.read_bytes() == whole
    assert result.predictions == [f"predictions/{name}" for name in ("SST-2.tsv", "dev.tsv", "test.tsv")]
    assert (path.parent / "notes.txt").read_text() == "mine"
    before = run.contents
    run.finetune()
    assert run.contents == before


def test_weights_that_are_gone_do_not_predict(place: Callable[[str], Place]) -> None:
    run = place("finished")
    (run.run / "predictions" / "dev.tsv").unlink()
    (run.run / "cp-0000.model").unlink()
    with pytest.raises(UserError, match=r"cp-0000\.model: no such"):
        run.finetune()


def test_a_healthy_run_warns_of_nothing(place: Callable[[str], Place], caplog: pytest.LogCaptureFixture) -> None:
    run = place("halfway")
    run.finetune()
    run.finetune()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
