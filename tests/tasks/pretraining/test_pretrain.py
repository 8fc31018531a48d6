"""Shipped configs, validation, from_cp and what users see."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import CPU, LENGTH, SHIPPED, VOCABULARY, run_here, small_config, write_experiment

from nystromformer.config import ExperimentConfig, experiment_config
from nystromformer.data.dataset import open_dataset
from nystromformer.data.preprocessing.build import DatasetSettings, build_dataset
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.report.curves import read_curve
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.pretraining.baselines import baseline_accuracies, count_guesses
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.pretrain import pretrain
from nystromformer.tasks.pretraining.trainable import Pretraining
from nystromformer.tasks.pretraining.validation import read_validation, table, validate
from nystromformer.training import Device, choose_device
from nystromformer.training.checkpoint import read_checkpoint


def shrunken(name: str) -> ExperimentConfig:
    """A shipped config with its own structure, objectives and attention, at a small size."""
    data = json.loads(SHIPPED[name].read_text())
    data.pop("from_cp", None)  # tests/tasks/experiment/test_start.py
    data["model"] |= {
        "vocab_size": VOCABULARY,
        "max_seq_len": 32,
        "embedding_dim": 16,
        "transformer_dim": 16,
        "transformer_hidden_dim": 32,
        "num_head": 2,
        "head_dim": 8,
    }
    if data["model"].get("num_landmarks") is not None:
        data["model"]["num_landmarks"] = 8
    small = {"linformer": {"projected_length": 8}, "near_far": {"block_size": 8, "num_landmarks": 8, "num_selected": 4}}
    if isinstance(attention := data["model"]["attn_type"], str) and attention in small:
        data["model"]["attn_type"] = {"name": attention, **small[attention]}
    data["pretraining_setting"] |= {
        "batch_size": 4,
        "batches_per_epoch": 2,
        "epoch": 1,
        "validate_batches_per_epoch": 1,
        "batches_per_report": 1,
    }
    if "batch_size_start" in data["pretraining_setting"]:
        data["pretraining_setting"] |= {"batch_size_start": 2, "batch_growth_tokens": 64}
    data["gpu_setting"] = {"inst_per_gpu": 2}
    return experiment_config(data, name)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_trains_saves_and_reloads(name: str, tmp_path: Path, dataset_folder: Path) -> None:
    experiment = Experiment(tmp_path, shrunken(name))
    assert pretrain(experiment, dataset_folder, CPU) is None
    content = read_checkpoint(tmp_path / "model" / "cp-0000.model")
    model = PretrainingModel(experiment.config.model, experiment.config.pretraining_setting.objectives)
    model.load_state_dict(content["model"])
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert experiment_config(content["config"], "checkpoint").model.attentions == experiment.config.model.attentions


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Experiment:
    experiment = write_experiment(tmp_path_factory.mktemp("finished"), pretraining_setting__epoch=2)
    pretrain(experiment, dataset_folder, CPU)
    return experiment


def test_validation_asks_the_same_every_time(finished: Experiment, dataset_folder: Path) -> None:
    dataset = open_dataset(dataset_folder)
    other = small_config(pretraining_setting__seed=7, gpu_setting__inst_per_gpu=2)

    def asked(config: ExperimentConfig) -> tuple[torch.Tensor, torch.Tensor]:
        batches = list(ValidationBatches(dataset.validation, RowPreparation(dataset, config), 10))
        return torch.cat([b["tokens_BN"] for b in batches]), torch.cat([b["labels_BK"] for b in batches])

    for a, b in zip(asked(finished.config), asked(other), strict=True):
        assert torch.equal(a, b)


def test_validation_scores_checkpoints_and_guessers(finished: Experiment, dataset_folder: Path) -> None:
    result = validate(finished, dataset_folder, CPU, "all", baselines=True)
    assert [score.checkpoint for score in result.scores] == ["cp-0000", "cp-0001"]
    assert result.scores[1].metrics["loss"] < result.scores[0].metrics["loss"]
    assert 0 < result.baselines["most_frequent_token"] <= result.baselines["bigram_table"] <= 1
    assert read_validation(finished.checkpoints / "validation.json") == result
    shown = table(result)
    assert "cp-0001" in shown
    assert "bigram table" in shown
    again = validate(finished, dataset_folder, CPU, "1")
    assert again.scores == result.scores[1:]
    assert read_validation(finished.checkpoints / "validation.json") == again
    path = finished.checkpoints / "validation.json"
    path.write_text(path.read_text().replace('"rows"', '"row"'))
    with pytest.raises(UserError, match=r"validation\.json: modified after it was written"):
        read_validation(path)


def test_another_attention_than_the_checkpoints_is_said(
    finished: Experiment, dataset_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The weights fit it, and it computes something else."""
    own = validate(finished, dataset_folder, CPU, "1")
    assert "in the checkpoint" not in caplog.text
    fewer = open_experiment(finished.folder, ["model.num_landmarks=2"])
    assert validate(fewer, dataset_folder, CPU, "1").scores != own.scores
    assert "cp-0001.model: model.num_landmarks: 8 in the checkpoint, 2 now" in caplog.text


def test_validation_during_training_is_that_of_the_rows(finished: Experiment, dataset_folder: Path) -> None:
    """The log's last validation is the score of the same weights on the same number of rows."""
    last = [r for r in read_curve(finished.folder).records if r["type"] == "validation"][-1]
    rows = 2 * finished.config.pretraining_setting.batch_size
    assert validate(finished, dataset_folder, CPU, "last", rows).scores[0].metrics["loss"] == pytest.approx(
        last["loss"]
    )


def test_guesses_are_counts(dataset_folder: Path) -> None:
    dataset = open_dataset(dataset_folder)
    special = (0, 1, 2, 3, 4)
    guesses = count_guesses(dataset.train, dataset.manifest.vocab_size, special)
    tokens = np.asarray(dataset.train.tokens).astype(int)
    counts = np.bincount(tokens.ravel(), minlength=dataset.manifest.vocab_size)
    counts[:5] = 0
    assert counts[guesses.most_frequent] == counts.max()
    left = guesses.most_frequent
    followers = tokens[:, 1:][tokens[:, :-1] == left]
    followers = followers[followers >= 5]
    assert (followers == guesses.after_V[left]).sum() == np.bincount(followers).max()
    accuracies = baseline_accuracies(dataset, RowPreparation(dataset, small_config()))
    assert accuracies["bigram_table"] > accuracies["most_frequent_token"]


def test_what_a_run_will_not_reach_is_said_before_it_begins(
    tmp_path: Path, dataset_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    larger = {"model__vocab_size": VOCABULARY + 9, "model__max_seq_len": LENGTH + 8, "pretraining_setting__epoch": 1}
    with caplog.at_level("INFO"):
        pretrain(write_experiment(tmp_path, **larger), dataset_folder, CPU)
    title = f"{tmp_path.name}, nystrom (num_landmarks=8, conv_kernel_size=5) attention, on {dataset_folder}"
    assert caplog.messages[0] == f"{title}, in {tmp_path / 'model'}"
    assert read_curve(tmp_path).records[0]["title"] == title
    for note in (
        f"the tokenizer has {VOCABULARY} tokens, model.vocab_size is {VOCABULARY + 9}: the embeddings of the others",
        f"rows have {LENGTH} tokens, model.max_seq_len is {LENGTH + 8}: the positions from there on",
    ):
        assert caplog.text.count(note) == 1


def test_a_start_builds_one_model_and_opens_one_checkpoint(
    tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_experiment(tmp_path / "first", pretraining_setting__epoch=1)
    pretrain(first, dataset_folder, CPU)
    built, opened = [], []
    make, open_file = PretrainingModel.__init__, Path.open
    monkeypatch.setattr(PretrainingModel, "__init__", lambda *args: built.append(1) or make(*args))

    def open_and_note(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if path.suffix in (".cp", ".model") and mode == "rb":
            opened.append(path.name)
        return open_file(path, mode, *args, **options)

    monkeypatch.setattr(Path, "open", open_and_note)
    pretrain(write_experiment(first.folder, pretraining_setting__epoch=2), dataset_folder, CPU)
    assert (len(built), opened) == (1, ["cp-0000.cp"])
    pretrain(first, dataset_folder, CPU)
    assert (len(built), opened) == (1, ["cp-0000.cp", "cp-0001.cp"]), "a finished one builds nothing"
    started = write_experiment(tmp_path / "started", pretraining_setting__epoch=1)
    config = started.config.model_copy(update={"from_cp": str(first.checkpoints / "cp-0001.model")})
    pretrain(replace(started, config=config), dataset_folder, CPU)
    assert (len(built), opened[2:]) == (2, ["cp-0001.model"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_and_resumes_like_float32(tmp_path: Path, dataset_folder: Path, precision: str) -> None:
    curves = []
    for kind in (False, precision):
        folder = tmp_path / str(kind)
        for epochs in (1, 2):  # the second call resumes
            changes = {"pretraining_setting__epoch": epochs, "model__mixed_precision": kind}
            # the few rows with an order weigh much: float16 would leave a step out
            changes |= {"pretraining_setting__objectives": ["mlm"], "pretraining_setting__batches_per_epoch": 4}
            pretrain(write_experiment(folder, **changes), dataset_folder, choose_device("cpu", kind))
        curves.append([r["loss"] for r in read_curve(folder).records if r["type"] == "train"])
    torch.testing.assert_close(torch.tensor(curves[1]), torch.tensor(curves[0]), rtol=0.01, atol=0)
    state = read_checkpoint(tmp_path / precision / "model" / "cp-0000.cp")
    assert bool(state["scaler"]) == (precision == "fp16")
    assert all(x.dtype == torch.float32 for x in state["model"].values())


def test_a_run_that_goes_on_in_another_precision_says_so(
    tmp_path: Path, dataset_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """mixed_precision true is what the device has: a run may begin with bfloat16 and go on where there is none."""
    bf16 = Device(torch.device("cpu"), torch.bfloat16)
    for epoch, device, name in ((1, bf16, "bf16"), (2, bf16, "bf16"), (3, CPU, "float32")):
        changes = {"pretraining_setting__epoch": epoch, "pretraining_setting__batches_per_epoch": 2}
        caplog.clear()
        with caplog.at_level("INFO"):
            pretrain(write_experiment(tmp_path, model__mixed_precision=True, **changes), dataset_folder, device)
        assert ("precision" in caplog.text) == (epoch == 3)
        asked = read_checkpoint(tmp_path / "model" / f"cp-{epoch - 1:04d}.cp")["asked"]
        assert asked["precision"] == name
    assert 'changed since cp-0001.cp: precision: "bf16" in the checkpoint, "float32" now' in caplog.text


def test_counts_of_the_whole_batch_weigh_the_micro_batches(dataset_folder: Path) -> None:
    dataset = open_dataset(dataset_folder)
    config = small_config(gpu_setting__inst_per_gpu=2)
    torch.manual_seed(0)
    pretraining = Pretraining(PretrainingModel(config.model, ["mlm", "sop"]).eval(), config, dataset, CPU)
    step = next(pretraining.steps(0, 1))
    assert len(step.micro_batches) == 4
    orders = torch.cat([batch["sop_labels"] for batch in step.micro_batches])
    parts = [pretraining.loss(batch) for batch in step.micro_batches]
    total = torch.stack([loss for loss, _ in parts]).sum()
    sums = torch.stack([s for _, s in parts]).sum(0)
    metrics = pretraining.metrics(sums.tolist())
    manifest = dataset.manifest.train
    usual = config.pretraining_setting.batch_size * manifest.sentence_order_rows / manifest.rows
    labelled = int((orders >= 0).sum())
    assert labelled != pytest.approx(usual)
    expected = metrics["mlm_loss"] + metrics["sop_loss"] * labelled / usual
    assert total.item() == pytest.approx(expected, rel=1e-5)


def test_padding_is_masked_in_every_layer(dataset_folder: Path) -> None:
    config = small_config()
    torch.manual_seed(0)
    pretraining = Pretraining(
        PretrainingModel(config.model, ["mlm", "sop"]).eval(), config, open_dataset(dataset_folder), CPU
    )
    batches = (b for step in pretraining.steps(0, 9) for b in step.micro_batches)
    batch = next(b for b in batches if (b["tokens_BN"] == 1).any())
    assert torch.equal(batch["mask_BN"], batch["tokens_BN"] != 1)
    assert not batch["mask_BN"].all()
    noise = torch.randint(5, VOCABULARY, batch["tokens_BN"].shape)
    other = {**batch, "tokens_BN": torch.where(batch["mask_BN"], batch["tokens_BN"], noise)}
    unmasked = {name: tensor for name, tensor in other.items() if name != "mask_BN"}
    losses = [pretraining.loss(b)[0].item() for b in (batch, other, unmasked)]
    assert losses[0] == losses[1] != losses[2]


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory, dataset_folder: Path) -> Path:
    """All documents of the dataset, for validation only."""
    folder = tmp_path_factory.mktemp("held-out") / "dataset"
    corpora = dataset_folder.with_name(f"{dataset_folder.name}-corpora")
    tokenizer = str(dataset_folder / "tokenizer")
    build_dataset(corpora, folder, DatasetSettings(LENGTH, ("made-up",), tokenizer, validation=1))
    return folder


def test_held_out_text_is_scored(finished: Experiment, held_out: Path) -> None:
    result = validate(finished, held_out, CPU)
    rows = open_dataset(held_out).validation
    assert result.rows == len(rows) > 100
    tokens = np.asarray(rows.tokens)
    masked = [max(1, int(0.15 * (row > 4).sum() + 0.15 * np.isin(row, (0, 2)).sum() + 0.5)) for row in tokens]
    assert result.masked_tokens == sum(masked)
    assert 0 < result.scores[0].metrics["mlm_accuracy"] < 1


def test_a_dataset_for_validation_only_trains_nothing(
    finished: Experiment,
    held_out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_experiment(tmp_path)
    flags = ("--dataset", held_out, "--device", "cpu")
    assert run_here(monkeypatch, "code/run_pretrain.py", "--model", tmp_path, *flags) == 2
    assert "a dataset for validation only (--validation 1) has no rows to train on" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    command = ("code/run_validation.py", "--model", finished.folder, *flags)
    assert run_here(monkeypatch, *command, "--baselines") == 2
    assert "leave out --baselines" in capsys.readouterr().err
