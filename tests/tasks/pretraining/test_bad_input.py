"""Each mistake gives one clear error and exit status 2, and changes nothing."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forking import Forked, as_torchrun
from small import CPU, run_here, write_dataset, write_experiment

from nystromformer.data.dataset import read_manifest, write_manifest
from nystromformer.errors import UserError
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import join_group

Refused = Callable[..., str]
PRETRAIN, VALIDATE = "code/run_pretrain.py", "code/run_validation.py"


@pytest.fixture
def run(two_epochs: Path, tmp_path: Path) -> Path:
    """A run of two epochs to break."""
    return Path(shutil.copytree(two_epochs, tmp_path / "run"))


@pytest.fixture
def data(dataset_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset_folder, tmp_path / "data"))


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_rows_longer_than_the_model_and_too_many_tokens(refused: Refused, tmp_path: Path, data: Path) -> None:
    write_experiment(tmp_path / "run", model__max_seq_len=16, model__vocab_size=200)
    said = refused(PRETRAIN, tmp_path / "run", "--dataset", data)
    assert "its rows have 32 tokens, the model takes 16" in said
    assert "its tokenizer has 300 tokens, the model 200" in said


def test_a_checkpoint_of_another_tokenizer(refused: Refused, run: Path, tmp_path: Path) -> None:
    other = write_dataset(tmp_path / "other", seed=1)
    assert "trained with another tokenizer" in refused(VALIDATE, run, "--dataset", other)
    edit(run / "config.json", lambda c: c["pretraining_setting"].update(epoch=3))
    assert "dataset: " in refused(PRETRAIN, run, "--dataset", other)


@pytest.mark.parametrize("wanted", ["7", "newest"])
def test_a_checkpoint_that_does_not_exist(refused: Refused, run: Path, data: Path, wanted: str) -> None:
    said = refused(VALIDATE, run, "--dataset", data, "--checkpoint", wanted)
    assert "last, all or one of 0, 1" in said
    for path in (run / "model").glob("cp-*"):
        path.unlink()
    assert "pretrain first" in refused(VALIDATE, run, "--dataset", data)


def test_a_run_that_is_to_go_on_with_another_attention(refused: Refused, run: Path, data: Path) -> None:
    edit(run / "config.json", lambda c: c["model"].update(conv_kernel_size=9, num_landmarks=4))
    said = refused(PRETRAIN, run, "--dataset", data)
    assert "model.conv_kernel_size: 5 in the checkpoint, 9 now" in said
    assert "model.num_landmarks: 8 in the checkpoint, 4 now" in said
    said = refused(VALIDATE, run, "--dataset", data)
    assert "core.skip.weight: the model has (2, 1, 9, 1), the checkpoint (2, 1, 5, 1)" in said


def test_a_run_that_diverges_keeps_its_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: Path
) -> None:
    write_experiment(tmp_path / "run")
    code = run_here(
        monkeypatch,
        PRETRAIN,
        *("--model", tmp_path / "run", "--dataset", data),
        *("--set", "pretraining_setting.learning_rate=10", "--set", "pretraining_setting.weight_decay=10"),
    )
    assert code == 2
    assert "the run has diverged" in capsys.readouterr().err
    assert not list((tmp_path / "run" / "model").glob("cp-*"))


def test_sentence_order_without_any_row_to_learn_it_from(refused: Refused, tmp_path: Path, data: Path) -> None:
    manifest = read_manifest(data)
    train = manifest.train.model_copy(update={"sentence_order_rows": 0})
    write_manifest(data, manifest.model_copy(update={"train": train}))
    write_experiment(tmp_path / "run")
    assert 'remove "sop" from objectives' in refused(PRETRAIN, tmp_path / "run", "--dataset", data)


def test_fixed_segments_that_do_not_fit_the_rows(refused: Refused, tmp_path: Path, data: Path) -> None:
    attention = {"name": "nystrom", "segments": "padded"}
    write_experiment(tmp_path / "run", model__attn_type=attention, model__max_seq_len=40, model__num_landmarks=10)
    said = refused(PRETRAIN, tmp_path / "run", "--dataset", data)
    assert "layer 0's attention does not accept rows of 32 tokens" in said
    assert "10 equal segments" in said


def other_text(path: Path) -> None:
    """Another token in the place of an ordinary one: nothing but the hash tells it."""
    status = path.stat()
    ids = np.fromfile(path, "<u2")
    ids[3] = ids[3] - 1 if ids[3] > 100 else ids[3] + 1
    ids.tofile(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["train.tokens.bin", "validation.tokens.bin"])
def test_a_run_on_other_text_ends_before_its_first_checkpoint(
    tmp_path: Path, data: Path, refused: Refused, name: str
) -> None:
    other_text(data / name)
    write_experiment(tmp_path / "run")
    text = refused(PRETRAIN, tmp_path / "run", "--dataset", data)
    assert f"{name}: expected SHA-256" in text
    assert "remove the folder" in text
    assert "step " not in text


def test_scores_of_other_text_are_not_written(run: Path, data: Path, refused: Refused) -> None:
    other_text(data / "validation.tokens.bin")
    assert "validation.tokens.bin: expected SHA-256" in refused(VALIDATE, run, "--dataset", data)


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
    assert [each.wait(300) for each in processes] == [3, 3], (tmp_path / "log").read_text()
    assert not list((tmp_path / "run" / "model").glob("cp-*"))
