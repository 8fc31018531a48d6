"""Phases of a pretraining run: short rows before long ones, stopped in any of them and resumed."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from run_files import assert_same_weights
from small import LENGTH, VOCABULARY, run_here, small_config, small_data, stop_at, write_dataset

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.errors import UserError
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.training.archive import read_checkpoint
from nystromformer.training.log import read_log

SCRIPT = "code/run_pretrain.py"
HALF = LENGTH // 2


@pytest.fixture(scope="module")
def short_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same text as the others, and so with the same tokenizer."""
    return write_dataset(tmp_path_factory.mktemp("short") / "rows", HALF)


def stages(short: Path, long: Path) -> list[dict[str, Any]]:
    """Two steps of short rows with softmax, four with fewer landmarks on rows of the run's own length."""
    own = {"max_seq_len": HALF, "batches_per_epoch": 2, "epoch": 1, "attn_type": "softmax"}
    return [
        {"data_folder": str(short), **own, "conv_kernel_size": 5},
        {"data_folder": str(long), "max_seq_len": LENGTH, "batches_per_epoch": 4, "epoch": 1, "num_landmarks": 4}
        | {"learning_rate": 1e-4, "batch_size": 4},
    ]


def write(folder: Path, short: Path, long: Path) -> Path:
    folder.mkdir()
    changes = {"pretraining_setting__epoch": 1, "pretraining_setting__stages": stages(short, long)}
    (folder / "config.json").write_text(json.dumps(small_data(**changes)))
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path, short_rows: Path) -> Path:
    folder = write(tmp_path_factory.mktemp("whole") / "e", short_rows, dataset_folder)
    with pytest.MonkeyPatch.context() as patch:
        assert run_here(patch, SCRIPT, "--model", folder, "--dataset", dataset_folder) == 0
    return folder


def test_each_phase_begins_with_the_weights_of_the_one_before_it(whole: Path) -> None:
    paths = [whole / "model" / name / "cp-0000.model" for name in ("stage-0", "stage-1", "")]
    first, second, last = (read_checkpoint(path) for path in paths)
    assert [content["step"] for content in (first, second, last)] == [2, 4, 10]
    assert first["started_from"] is None
    for content, before in ((second, paths[0]), (last, paths[1])):
        assert Path(content["started_from"]["path"]) == before.resolve()
    models = [content["config"]["model"] for content in (first, second, last)]
    assert [model["max_seq_len"] for model in models] == [HALF, LENGTH, LENGTH]
    assert [model["attn_type"] for model in models] == ["softmax", "nystrom", "nystrom"]
    assert [model["num_landmarks"] for model in models] == [None, 4, 8]
    logs = [read_log(path.parent / "log.jsonl") for path in paths]
    rates = [max(r["learning_rate"] for r in log if r["type"] == "train") for log in logs]
    assert rates[1] <= 1e-4 < 5e-4 < min(rates[0], rates[2]), "of the phase's own schedule"
    assert read_checkpoint(paths[1])["config"]["pretraining_setting"]["batch_size"] == 4


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_stopped_in_any_phase_it_ends_in_the_same_bits(
    stop: int, whole: Path, tmp_path: Path, dataset_folder: Path, short_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "e", short_rows, dataset_folder)
    flags = ("--model", folder, "--dataset", dataset_folder)
    with monkeypatch.context() as patch:
        stop_at(stop, patch)
        assert run_here(patch, SCRIPT, *flags) == 128 + signal.SIGTERM
    assert run_here(monkeypatch, SCRIPT, *flags) == 0
    assert_same_weights(folder, whole, "cp-0000.model")
    assert run_here(monkeypatch, SCRIPT, *flags) == 0, "done already"


def test_a_checkpoint_that_was_only_begun_is_none(
    whole: Path, tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "e")
    for path in (tmp_path / "e" / "model").glob("cp-*"):
        path.unlink()
    (tmp_path / "e" / "model" / "cp-0000-step-00000001.cp.tmp").touch()
    (tmp_path / "e" / "model" / "stage-0" / "cp-0000.model").unlink()
    assert run_here(monkeypatch, SCRIPT, "--model", tmp_path / "e", "--dataset", dataset_folder) == 0
    assert_same_weights(tmp_path / "e", whole, "cp-0000.model")


def test_a_run_that_has_begun_asks_for_no_earlier_phase(
    whole: Path, tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "e" / "model").mkdir(parents=True)
    config = json.loads((whole / "config.json").read_text())
    config["pretraining_setting"]["stages"][0]["data_folder"] = str(tmp_path / "removed")
    (tmp_path / "e" / "config.json").write_text(json.dumps(config))
    for name in ("cp-0000.cp", "cp-0000.model", "run.json"):
        (tmp_path / "e" / "model" / name).write_bytes((whole / "model" / name).read_bytes())
    assert run_here(monkeypatch, SCRIPT, "--model", tmp_path / "e", "--dataset", dataset_folder) == 0
    assert not list((tmp_path / "e").glob("model/stage-*"))


def test_a_phase_that_is_shortened_gives_its_last_weights(
    tmp_path: Path, dataset_folder: Path, short_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "e", short_rows, dataset_folder)
    flags = ("--model", folder, "--dataset", dataset_folder)
    config = json.loads((folder / "config.json").read_text())
    for epochs in (3, 1):
        config["pretraining_setting"]["stages"][0]["epoch"] = epochs
        (folder / "config.json").write_text(json.dumps(config))
        with monkeypatch.context() as patch:
            stop_at(2, patch)  # in its second epoch; then in the next phase
            assert run_here(patch, SCRIPT, *flags) == 128 + signal.SIGTERM
    (newest,) = (folder / "model" / "stage-1").glob("*.cp")
    assert Path(read_checkpoint(newest)["started_from"]["path"]).name == "cp-0001.model"


def test_a_signal_in_a_phases_last_validation_ends_the_run(
    tmp_path: Path, dataset_folder: Path, short_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "e", short_rows, dataset_folder)
    validate = Pretraining.validate

    def interrupted(self: Pretraining) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return validate(self)

    monkeypatch.setattr(Pretraining, "validate", interrupted)
    assert run_here(monkeypatch, SCRIPT, "--model", folder, "--dataset", dataset_folder) == 128 + signal.SIGTERM
    assert (folder / "model" / "stage-0" / "cp-0000.model").is_file()
    assert not (folder / "model" / "stage-1").exists()


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ({"name": "nystrom"}, [4, 4]),
        ([{"name": "nystrom", "num_landmarks": 2}, {"name": "nystrom"}], [2, 4]),
        ({"every": 2, "global": {"name": "nystrom"}, "local": {"name": "nystrom", "num_landmarks": 2}}, [4, 2]),
    ],
)
def test_a_phases_landmarks_are_those_of_layers_without_their_own(attention: Any, expected: list[int]) -> None:
    own = {"data_folder": "/rows", "max_seq_len": HALF, "epoch": 1, "num_landmarks": 4}
    config = experiment_config(small_data(model__attn_type=attention, pretraining_setting__stages=[own]), "config.json")
    (stage,) = config.pretraining_setting.stages or ()
    data = stage.written_over(config.model_dump(mode="json", by_alias=True))
    layers = experiment_config(data, "phase").model.attentions
    assert [layer.model_dump()["num_landmarks"] for layer in layers] == expected


PERFORMER = {"name": "performer", "num_features": 8, "redraw_steps": None}


@pytest.mark.parametrize(
    ("model", "phase", "expected"),
    [
        ({}, {"attn_type": PERFORMER}, PERFORMER),
        ({"attn_type": {"name": "nystrom", "pinv_iterations": 8}}, {"num_landmarks": 4}, {"num_landmarks": 4}),
        ({"attn_type": {"name": "nystrom"}}, {"conv_kernel_size": 3}, {"conv_kernel_size": 3}),
        ({}, {"attn_type": {"name": "nystrom"}, "num_landmarks": 4}, {"num_landmarks": 4}),
    ],
    ids=["a null that is no default", "no landmarks of the run", "no convolution of the run", "both of the phase"],
)
def test_what_a_phase_says_of_attention_is_what_it_has(
    model: dict[str, Any], phase: dict[str, Any], expected: dict[str, Any]
) -> None:
    own = {"data_folder": "/rows", "max_seq_len": 100, "epoch": 1, **phase}
    data = small_data(model__max_seq_len=200, pretraining_setting__stages=[own])
    data["model"] = {**data["model"], "num_landmarks": None, "conv_kernel_size": None, "attn_type": "softmax", **model}
    config = experiment_config(data, "config.json")
    (stage,) = config.pretraining_setting.stages or ()
    written = stage.written_over(config.model_dump(mode="json", by_alias=True))
    for layer in experiment_config(written, "phase").model.attentions:
        assert layer.model_dump().items() >= expected.items()


def with_stages(*given: dict[str, Any]) -> ExperimentConfig:
    return experiment_config(small_data(pretraining_setting__stages=list(given)), "config.json")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "pretraining_setting.stages: expected at least one phase, or null for none"),
        ([16, 8], "pretraining_setting.stages[0].max_seq_len: expected at most 8, as in the next phase, found 16"),
        ([64], "pretraining_setting.stages[0].max_seq_len: expected at most 32, as in the next phase, found 64"),
    ],
)
def test_phases_that_do_not_follow_on_each_other(given: list[int], expected: str) -> None:
    with pytest.raises(UserError) as refused:
        with_stages(*({"data_folder": "/rows", "max_seq_len": length, "epoch": 1} for length in given))
    assert expected in str(refused.value)


def test_what_is_wrong_with_a_phase_is_told_before_anything_is_trained(
    tmp_path: Path,
    dataset_folder: Path,
    short_rows: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = write_dataset(tmp_path / "other", LENGTH, seed=3)
    assert small_config().model.vocab_size == VOCABULARY
    cases = {
        "missing": ({"data_folder": str(tmp_path / "none")}, "expected a dataset folder, found none"),
        "long": ({"data_folder": str(dataset_folder)}, "32"),
        "short": (
            {"data_folder": str(short_rows)},
            f"rows of {HALF} tokens, where the phase's max_seq_len is {LENGTH}",
        ),
        "landmarks": ({"attn_type": {"name": "nystrom", "num_landmarks": 999}}, "pretraining_setting.stages[1]"),
    }
    cases["kernel"] = ({"conv_kernel_size": 9}, "the phase after it cannot begin with its weights")
    for name, (change, expected) in cases.items():
        folder = write(tmp_path / name, short_rows, dataset_folder)
        data = json.loads((folder / "config.json").read_text())
        number = 1 if name in ("landmarks", "short", "kernel") else 0
        data["pretraining_setting"]["stages"][number] |= change
        if name == "landmarks":
            del data["pretraining_setting"]["stages"][1]["num_landmarks"]
        (folder / "config.json").write_text(json.dumps(data))
        assert run_here(monkeypatch, SCRIPT, "--model", folder, "--dataset", dataset_folder) == 2, name
        assert expected in " ".join(capsys.readouterr().err.split()), name
        assert not list(folder.rglob("cp-*"))
    folder = write(tmp_path / "tokenizer", short_rows, other)
    assert run_here(monkeypatch, SCRIPT, "--model", folder, "--dataset", dataset_folder) == 2
    assert "made with another tokenizer than the run's own rows" in capsys.readouterr().err
    assert not list(folder.rglob("cp-*"))
