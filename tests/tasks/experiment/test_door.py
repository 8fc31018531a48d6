"""The one way into an experiment: what was opened is whole, checked and not kept."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from small import CPU, small_data, write_experiment

from nystromformer.errors import UserError
from nystromformer.tasks.experiment.opening import (
    Opened,
    OpenedPretraining,
    open_finetuning,
    open_pretraining,
    open_scoring,
)
from nystromformer.tasks.experiment.run import pretraining_settings
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group
from nystromformer.training.archive import read_checkpoint, write_checkpoint

ONE, TWO = {"pretraining_setting__epoch": 1}, {"pretraining_setting__epoch": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert pretrain(write_experiment(folder, **TWO), dataset_folder, CPU) is None
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def begun(folder: Path, dataset: Path, **changes: object) -> OpenedPretraining:
    with ExitStack() as held:
        return open_pretraining(write_experiment(folder, **changes), dataset, CPU, False, Group(), held)


def test_a_new_run_has_no_checkpoint_and_a_begun_one_begins_with_nothing_else(
    finished: Path, tmp_path: Path, dataset_folder: Path
) -> None:
    new, old = begun(tmp_path, dataset_folder), begun(finished, dataset_folder, **TWO)
    assert new.checkpoint is None
    assert old.checkpoint is not None
    assert old.checkpoint.path.name == "cp-0001.cp"
    settings = pretraining_settings(old.config)
    assert old.checkpoint.ends(settings)
    assert not old.checkpoint.ends(dataclasses.replace(settings, num_steps=21))
    assert new.start is old.start is None
    assert new.facts["started_from"] is old.facts["started_from"] is None
    assert new.facts["tokenizer"] == old.checkpoint.content["tokenizer"]
    for opened in (new, open_scoring(write_experiment(finished, **TWO), dataset_folder, CPU, "all")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            opened.device = CPU  # type: ignore[misc]
        assert isinstance(opened, Opened)


def test_the_folder_is_held_as_long_as_the_caller_says(tmp_path: Path, dataset_folder: Path) -> None:
    experiment = write_experiment(tmp_path)
    with ExitStack() as held:
        open_pretraining(experiment, dataset_folder, CPU, False, Group(), held)
        with pytest.raises(UserError, match="a run is active here already"), ExitStack() as second:
            open_pretraining(experiment, dataset_folder, CPU, False, Group(), second)
    begun(tmp_path, dataset_folder)


def test_of_start_weights_that_do_not_fit_nothing_is_left(finished: Path, tmp_path: Path, dataset_folder: Path) -> None:
    """They are refused at the door: no tokenizer, no log, no weights come to lie in the folder."""
    folder = tmp_path / "wider"
    experiment = write_experiment(folder, model__transformer_hidden_dim=48)
    config = experiment.config.model_copy(update={"from_cp": str(finished / "model" / "cp-0001.model")})
    with pytest.raises(UserError, match=r"model.transformer_hidden_dim: 48 in config.json, 32 in the checkpoint"):
        pretrain(dataclasses.replace(experiment, config=config), dataset_folder, CPU)
    assert [path.name for path in (folder / "model").iterdir()] == ["run.lock"]


def of_another_tokenizer(path: Path) -> None:
    write_checkpoint(read_checkpoint(path) | {"tokenizer": "0" * 64}, path)


def of_another_size(path: Path) -> None:
    content = read_checkpoint(path)
    content["model"]["mlm.bias"] = content["model"]["mlm.bias"][:-1].clone()
    write_checkpoint(content, path)


def without_its_step(path: Path) -> None:
    write_checkpoint({key: value for key, value in read_checkpoint(path).items() if key != "step"}, path)


def damaged(path: Path) -> None:
    """In a tensor, which no look at the rest would find; and no whole state is there to take the weights from."""
    weights = read_checkpoint(path)["model"]["encoder.embeddings.word.weight"].numpy().tobytes()
    path.write_bytes(path.read_bytes().replace(weights, bytes(len(weights))))
    path.with_suffix(".cp").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (of_another_tokenizer, "trained with another tokenizer"),
        (of_another_size, "of another architecture than the model in config.json:\n  mlm.bias"),
        (without_its_step, "not a checkpoint of a run: it has no step"),
        (damaged, "damaged (its content is not what its checksum says)"),
    ],
)
def test_all_checkpoints_are_looked_at_before_the_first_is_scored(
    copy: Path, dataset_folder: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(copy / "model" / "cp-0001.model")
    experiment = write_experiment(copy, **TWO)
    with pytest.raises(UserError, match=re.escape(f"cp-0001.model: {words}")):
        open_scoring(experiment, dataset_folder, CPU, "all")
    assert [path.name for path in open_scoring(experiment, dataset_folder, CPU, "0").checkpoints] == ["cp-0000.model"]


def test_finetuning_begins_with_the_encoder_alone(finished: Path) -> None:
    opened = open_finetuning(write_experiment(finished, **TWO), CPU)
    assert opened.pretrained.path.name == "cp-0001.model"
    assert all(name.startswith("encoder.") for name in opened.pretrained.encoder)
    assert opened.tokenizer.get_vocab_size() <= small_data()["model"]["vocab_size"]


def test_finetuning_without_the_tokenizer_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "model" / "tokenizer")
    with pytest.raises(UserError, match=r"the checkpoint's tokenizer .* was not found"):
        open_finetuning(write_experiment(copy, **TWO), CPU)
