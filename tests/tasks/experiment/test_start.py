"""from_cp: a new run begins with another run's weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import SOFTMAX
from small import CPU, run_here, small_data, write_dataset

from nystromformer.config import experiment_config
from nystromformer.data.dataset import Dataset, open_dataset
from nystromformer.errors import UserError
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.experiment.start import initial_model, load_start_weights
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.training import Group
from nystromformer.training.checkpoint import read_checkpoint, write_checkpoint

LONG = 100
ONE_EPOCH: dict[str, Any] = {"pretraining_setting__epoch": 1}
SKIP = "encoder.layers.0-1.attention.core.skip.weight"


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text and tokenizer in longer rows."""
    return write_dataset(tmp_path_factory.mktemp("long"), length=LONG)


@pytest.fixture(scope="module")
def dataset(dataset_folder: Path) -> Dataset:
    return open_dataset(dataset_folder)


def experiment_from(folder: Path, from_cp: str, resize: str = "lossless", **changes: Any) -> Experiment:
    """A new experiment folder whose config.json has a from_cp."""
    folder.mkdir(parents=True, exist_ok=True)
    data = small_data(**changes) | {"from_cp": from_cp, "from_cp_resize": resize}
    (folder / "config.json").write_text(json.dumps(data))
    return Experiment(folder, experiment_config(data, "test"))


def begin(experiment: Experiment, dataset: Dataset) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a new run would begin with, and what it would say about it."""
    model = initial_model(experiment.config)
    origin = load_start_weights(model, experiment, dataset, Group())
    assert origin is not None
    return model.state_dict(), dict(origin)


def refusal(experiment: Experiment, dataset: Dataset) -> str:
    with pytest.raises(UserError) as caught:
        begin(experiment, dataset)
    return str(caught.value)


def test_longer_from_shorter_through_the_command(
    two_epochs: Path,
    long_rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes: dict[str, Any] = {"model__max_seq_len": LONG, "model__conv_kernel_size": 9, "model__dropout_prob": 0.0}
    experiment_from(tmp_path, "/model/cp-0001.model", **changes, **ONE_EPOCH)
    given = shutil.copy(two_epochs / "model" / "cp-0001.model", tmp_path)
    flags = ["--model", tmp_path, "--dataset", long_rows, "--device", "cpu"]
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, "code/run_pretrain.py", *flags) == 0
    said = [record.message for record in caplog.records]
    first = said.index(f"weights from {tmp_path}/cp-0001.model (step 20)")
    assert said[first + 1 : first + 3] == [
        "  encoder.embeddings.position.weight: positions: 32 repeated to 100",
        f"  {SKIP}: 5 taps amid 9, zeros around them",
    ]
    origin = {"path": "/model/cp-0001.model", "sha256": read_checkpoint(Path(given))["sha256"], "step": 20}
    for suffix in ("cp", "model"):
        content = read_checkpoint(tmp_path / "model" / f"cp-0000.{suffix}")
        # A new run: it counts from 0.
        assert (content["started_from"], content["step"]) == (origin, 10)
    assert read_checkpoint(tmp_path / "model" / "cp-0000.cp")["progress"]["step"] == 10

    # It goes on without the file that it began with, and does not forget it.
    Path(given).unlink()
    caplog.clear()
    with caplog.at_level("INFO"):
        assert run_here(monkeypatch, "code/run_pretrain.py", *flags, "--set", "pretraining_setting.epoch=2") == 0
    assert "going on from cp-0000.cp" in caplog.text
    assert "from_cp" not in caplog.text
    assert read_checkpoint(tmp_path / "model" / "cp-0001.model")["started_from"] == origin


@pytest.mark.parametrize("kind", ["container", "absolute", "relative", "relative to the folder above"])
def test_paths(two_epochs: Path, dataset: Dataset, tmp_path: Path, kind: str) -> None:
    name = "cp-0001.cp" if kind == "relative" else "cp-0001.model"
    file = tmp_path / "new" / "from" / name
    file.parent.mkdir(parents=True)
    shutil.copy(two_epochs / "model" / name, file)
    (tmp_path / "old").mkdir()
    shutil.copy(file, tmp_path / "old")
    paths = {
        "container": f"/model/from/{name}",
        "absolute": str(file),
        "relative": f"from/{name}",
        "relative to the folder above": f"../old/{name}",
    }
    weights, origin = begin(experiment_from(tmp_path / "new", paths[kind]), dataset)
    assert origin == {"path": paths[kind], "sha256": read_checkpoint(file)["sha256"], "step": 20}
    for key, value in read_checkpoint(file)["model"].items():
        assert torch.equal(weights[key], value), key


def test_softmax_from_nystrom_and_what_is_said(
    two_epochs: Path, dataset_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(two_epochs / "model" / "cp-0001.model")
    changes = SOFTMAX | {"pretraining_setting__objectives": ["mlm"]}
    softmax = experiment_from(tmp_path / "softmax", path, **changes, **ONE_EPOCH)
    head = ", ".join(f"sentence_order.{part}.{kind}" for part in ("dense", "classifier") for kind in ("weight", "bias"))
    with caplog.at_level("INFO"):
        assert pretrain(softmax, dataset_folder, CPU) is None
    assert f"not in the model, left out: {SKIP}, {head}" in caplog.text
    assert 'model.attn_type: "nystrom" in the checkpoint, "softmax" now' in caplog.text
    back = experiment_from(tmp_path / "back", str(softmax.checkpoints / "cp-0000.cp"), **ONE_EPOCH)
    with caplog.at_level("INFO"):
        assert pretrain(back, dataset_folder, CPU) is None
    assert f"not in the checkpoint, initial values: {SKIP}, {head}" in caplog.text


def test_the_key_says_what_may_change_its_size(two_epochs: Path, dataset: Dataset, tmp_path: Path) -> None:
    path = str(two_epochs / "model" / "cp-0001.model")
    smaller: dict[str, Any] = {"model__conv_kernel_size": 3}
    weights, _ = begin(experiment_from(tmp_path, path, "lossy", **smaller), dataset)
    name = SKIP.replace("0-1", "0")
    assert torch.equal(weights[name], read_checkpoint(Path(path))["model"][name][:, :, 1:4])
    assert "taps would be lost" in refusal(experiment_from(tmp_path, path, **smaller), dataset)


def test_through_the_command_each_mistake_is_one_error_and_changes_nothing(
    two_epochs: Path,
    dataset_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = two_epochs / "model" / "cp-0001.model"
    experiment_from(tmp_path, str(path))
    flags = ["--model", tmp_path, "--dataset", dataset_folder, "--set"]
    misfits = (
        f"{path}: of another architecture than the model in config.json:",
        "  model.transformer_hidden_dim: 64 in config.json, 32 in the checkpoint",
        "  model.num_layers: 3 in config.json, 2 in the checkpoint",
        "The model may differ in max_seq_len, num_sen_type, attn_type and its parameters, and the objectives.\n",
    )
    for overrides, words in (
        (("model.transformer_hidden_dim=64", "--set", "model.num_layers=3"), "\n".join(misfits)),
        (("from_cp=cp-0009.model",), "no such checkpoint (from_cp)"),
    ):
        assert run_here(monkeypatch, "code/run_pretrain.py", *flags, *overrides) == 2
        said = capsys.readouterr().err
        assert said.count("error:") == 1
        assert words in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "model", "run.lock"]


def test_files_that_are_not_a_runs_checkpoint(two_epochs: Path, dataset: Dataset, tmp_path: Path) -> None:
    content = read_checkpoint(two_epochs / "model" / "cp-0001.model")
    experiment = experiment_from(tmp_path, "start.model")
    file = tmp_path / "start.model"
    write_checkpoint({key: value for key, value in content.items() if key not in ("config", "step")}, file)
    assert refusal(experiment, dataset) == f"{file}: not a checkpoint of a run: it has no config, step"
    write_checkpoint(content | {"tokenizer": "0" * 64}, file)
    assert "trained with another tokenizer" in refusal(experiment, dataset)
    file.write_bytes((two_epochs / "model" / "cp-0001.model").read_bytes()[:-500])
    assert "truncated or damaged" in refusal(experiment, dataset)
