"""Rows that were changed, or written wrongly: no checkpoint, no score, one clear error."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from forking import Forked, as_torchrun
from small import CPU, run_here, write_experiment

from nystromformer.data.verification import MEMORY_FILE
from nystromformer.errors import UserError
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import join_group

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
    monkeypatch.setattr("nystromformer.data.verification._verify", None)
    pretrain(write_experiment(tmp_path / "second", pretraining_setting__epoch=1), data, CPU)
    assert checkpoints(tmp_path / "second") == checkpoints(tmp_path / "first") != []
    monkeypatch.undo()
    other_text(data / "train.tokens.bin")
    with pytest.raises(UserError, match=r"train\.tokens\.bin: expected SHA-256"):
        pretrain(write_experiment(tmp_path / "second", pretraining_setting__epoch=2), data, CPU)
    assert checkpoints(tmp_path / "second") == checkpoints(tmp_path / "first")


def test_scores_of_other_text_are_not_written(tmp_path: Path, data: Path, said: Callable[..., str]) -> None:
    pretrain(write_experiment(tmp_path / "run", pretraining_setting__epoch=1), data, CPU)
    other_text(data / "validation.tokens.bin")
    text = said(VALIDATE, "--model", tmp_path / "run", "--dataset", data, "--device", "cpu")
    assert "validation.tokens.bin: expected SHA-256" in text
    assert not (tmp_path / "run" / "model" / "validation.json").exists()


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
