"""Rows that were changed, or written wrongly: no checkpoint, no score, one clear error."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forking import Forked, as_torchrun
from small import CPU, run_here, write_experiment

from nystromformer.data.verification import MEMORY_FILE, Verification
from nystromformer.errors import UserError
from nystromformer.files.checked_json import write_checked
from nystromformer.files.writing import sha256_of
from nystromformer.tasks.experiment.opening import verify_beside
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group, join_group

PRETRAIN, VALIDATE = "code/run_pretrain.py", "code/run_validation.py"


@pytest.fixture
def data(dataset_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset_folder, tmp_path / "data", ignore=shutil.ignore_patterns(MEMORY_FILE)))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that has to end with status 2; returns what it said."""

    def check(*words: object) -> str:
        capsys.readouterr()
        assert run_here(monkeypatch, *words) == 2  # type: ignore[arg-type]
        text = capsys.readouterr().err
        assert text.count("error:") == 1
        assert "Traceback" not in text
        return text

    return check


def other_text(path: Path) -> None:
    """Another token in the place of an ordinary one: nothing but the hash tells it."""
    status = path.stat()
    ids = np.fromfile(path, "<u2")
    ids[3] = ids[3] - 1 if ids[3] > 100 else ids[3] + 1
    ids.tofile(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "model").glob("cp-*"))


@pytest.mark.parametrize("name", ["train.tokens.bin", "validation.tokens.bin"])
def test_a_run_on_other_text_ends_before_its_first_checkpoint(
    tmp_path: Path, data: Path, said: Callable[..., str], name: str
) -> None:
    other_text(data / name)
    write_experiment(tmp_path / "run")
    text = said(PRETRAIN, "--model", tmp_path / "run", "--dataset", data, "--device", "cpu")
    assert f"{name}: expected SHA-256" in text
    assert "--overwrite" in text
    assert not checkpoints(tmp_path / "run")
    text = said(PRETRAIN, "--model", tmp_path / "run", "--dataset", data, "--device", "cpu", "--verify")
    assert "step " not in text


def test_what_was_verified_is_not_read_again(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrain(write_experiment(tmp_path / "first", pretraining_setting__epoch=1), data, CPU)
    assert len(json.loads((data / MEMORY_FILE).read_text())) == 4
    monkeypatch.setattr("nystromformer.data.verification.Verification._verify", None)
    pretrain(write_experiment(tmp_path / "second", pretraining_setting__epoch=1), data, CPU)
    assert checkpoints(tmp_path / "second") == checkpoints(tmp_path / "first") != []
    monkeypatch.undo()
    other_text(data / "train.tokens.bin")
    with pytest.raises(UserError, match=r"train\.tokens\.bin: expected SHA-256"):
        pretrain(write_experiment(tmp_path / "second", pretraining_setting__epoch=2), data, CPU)
    assert checkpoints(tmp_path / "second") == checkpoints(tmp_path / "first")


def test_a_dataset_that_cannot_be_written_to_is_remembered_in_the_model_folder(tmp_path: Path, data: Path) -> None:
    (data / MEMORY_FILE).mkdir()
    pretrain(write_experiment(tmp_path / "run", pretraining_setting__epoch=1), data, CPU)
    assert len(json.loads((tmp_path / "run" / "model" / MEMORY_FILE).read_text())) == 4


def test_scores_of_other_text_are_not_written(tmp_path: Path, data: Path, said: Callable[..., str]) -> None:
    pretrain(write_experiment(tmp_path / "run", pretraining_setting__epoch=1), data, CPU)
    other_text(data / "validation.tokens.bin")
    text = said(VALIDATE, "--model", tmp_path / "run", "--dataset", data, "--device", "cpu")
    assert "validation.tokens.bin: expected SHA-256" in text
    assert not (tmp_path / "run" / "model" / "validation.json").exists()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["train.tokens.bin", "train.splits.bin"])
def test_rows_that_cannot_be_end_the_run_before_the_model_sees_them(
    tmp_path: Path, data: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    """With the hash that is theirs, and before their verification has come so far."""
    values = np.fromfile(data / name, "<u2")
    if "tokens" in name:
        values.reshape(-1, 32)[:, 3] = 60_000
    else:
        values[:] = 31
    values.tofile(data / name)
    manifest = json.loads((data / "manifest.json").read_text())
    manifest["train"]["files"][name]["sha256"] = sha256_of(data / name)
    del manifest["sha256"]
    write_checked(data / "manifest.json", manifest)
    monkeypatch.setattr("nystromformer.data.verification.Verification.run", lambda *_, **__: None)
    write_experiment(tmp_path / "run")
    flags = "--dataset", data, "--device", "cpu", "--workers", workers
    text = said(PRETRAIN, "--model", tmp_path / "run", *flags)
    expected = "expected ids from 0 to 299" if "tokens" in name else "expected its second part to begin"
    assert f"{name}: row " in text
    assert expected in text
    assert not checkpoints(tmp_path / "run")


def test_a_forced_verification_keeps_no_process_in_a_collective(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reads for longer than the others would wait at once: they ask now and then."""
    experiment = write_experiment(tmp_path / "run", pretraining_setting__epoch=1)
    asked = []
    highest = Group.highest
    monkeypatch.setattr(Group, "highest", lambda self, *given: asked.append(given) or highest(self, *given))
    real = Verification.run

    def slow(self: Verification, force: bool = False, stop: threading.Event | None = None) -> None:
        assert force
        assert stop is not None
        stop.wait(1.2)
        real(self, force, stop)

    monkeypatch.setattr(Verification, "run", slow)

    def work() -> int:
        with join_group() as group:
            dataset = experiment.dataset(data)
            experiment.checkpoints.mkdir(exist_ok=True)
            verify_beside(dataset, experiment, ("train",), group, first=True)
            return 3 if len(asked) > 2 else 4

    processes = [Forked(work, tmp_path / "log", environment) for environment in as_torchrun(2)]
    assert [each.wait(60) for each in processes] == [3, 3], (tmp_path / "log").read_text()
    assert len(json.loads((data / MEMORY_FILE).read_text())) == 4


def impossible(data: Path, row: int) -> None:
    """A validation row that no dataset can hold."""
    path = data / "validation.tokens.bin"
    rows = np.fromfile(path, "<u2").reshape(-1, 32)
    rows[row, 3] = 60_000
    rows.tofile(path)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_rows_of_one_process_that_cannot_be_are_told_by_all(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, parallel: str
) -> None:
    """Each has other validation rows, and is at them alone."""
    experiment = write_experiment(tmp_path / "run", gpu_setting__parallel=parallel)
    batches = ValidationBatches(
        experiment.dataset(data).validation, RowPreparation(experiment.dataset(data), experiment.config), 16
    )
    impossible(data, int(batches._parts[1][0]))
    monkeypatch.setattr("nystromformer.data.verification.Verification.run", lambda *_, **__: None)

    def work() -> int:
        with join_group() as group:
            try:
                pretrain(experiment, data, CPU, group=group)
            except UserError as error:
                told = str(error).startswith("process 1: ") and "validation.tokens.bin: row" in str(error)
                return 3 if told and error.exit_status == 2 else 4
        return 5

    processes = [Forked(work, tmp_path / "log", environment) for environment in as_torchrun(2)]
    assert [each.wait(60) for each in processes] == [3, 3], (tmp_path / "log").read_text()


def test_two_processes_end_together(tmp_path: Path, data: Path) -> None:
    other_text(data / "train.tokens.bin")
    experiment = write_experiment(tmp_path / "run")

    def work() -> int:
        with join_group() as group:
            try:
                pretrain(experiment, data, CPU, group=group)
            except UserError as error:
                return 3 if "train.tokens.bin: expected SHA-256" in str(error) else 4
        return 5

    processes = [Forked(work, tmp_path / "log", environment) for environment in as_torchrun(2)]
    assert [each.wait(60) for each in processes] == [3, 3], (tmp_path / "log").read_text()
    assert not checkpoints(tmp_path / "run")
