"""Fine-tuning runs: killed and resumed, in several processes, in grids, what they leave and what they read again."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dying import Killed
from finetuning import copy_of, finetune, opened, write_sst2, write_stsb
from small import CPU, ROOT, contents, run_here

from nystromformer.errors import UserError
from nystromformer.interop.experiments.open_model import open_model
from nystromformer.prediction.predictor import Predictor
from nystromformer.runs.record import Run, read_run
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.finetuning import run as finetuning_run
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.finetuning.run import ask
from nystromformer.tasks.finetuning.target import Classes
from nystromformer.tasks.finetuning.trainable import build_model
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.training import Device
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log

NO_DROPOUT = ("model.dropout_prob=0.0",)
SCRIPT = "code/run_glue.py"


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stsb(write_sst2(tmp_path_factory.mktemp("glue")))


def sst2(folder: Path) -> Glue:
    return Glue(find_tasks("SST-2")[0], folder)


def run(experiment: Experiment, glue_folder: Path, **changes: Any) -> Run:
    (result,) = finetune(experiment, sst2(glue_folder), **changes).results
    return result


def metrics(result: Run) -> list[dict[str, float]]:
    return [epoch.metrics for epoch in result.epochs]


def lines(result: Run) -> list[tuple[int, float, float]]:
    """Step, loss and, of training, the norm of its gradient, whose scale Adam would hide."""
    records = read_log(result.folder / "log.jsonl")
    kinds = ("train", "validation")
    return [(r["step"], r["loss"], r.get("gradient_norm", 0.0)) for r in records if r["type"] in kinds]


FLAGS = ("--task", "SST-2", "--batch_size", 4, "--lr", 1e-3, "--epoch", 3, "--device", "cpu")


def find_unfinished(checkpoints: Path) -> list[Path]:
    """The folders in which a run began that is not finished."""
    return [path.parent for path in sorted(checkpoints.rglob("run.json")) if read_run(path.parent) is None]


@pytest.mark.slow
def test_two_processes_are_one(
    source: Path, tmp_path: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done_by = []
    settings = (*NO_DROPOUT, "pretraining_setting.batches_per_report=1")
    flags = [*FLAGS, "--glue", glue_folder, *(flag for override in settings for flag in ("--set", override))]
    # 60 rows: one is left at an epoch's end, so that a process has none.
    flags[flags.index("--batch_size") + 1] = 59
    for processes in (1, 2):
        experiment = copy_of(source, tmp_path / str(processes))
        if processes == 1:
            assert run_here(monkeypatch, SCRIPT, "--model", experiment.folder, *flags) == 0
        else:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
            script = [*launcher, ROOT / SCRIPT, "--model", experiment.folder, *flags]
            done = subprocess.run(list(map(str, script)), capture_output=True, text=True, timeout=200, check=False)
            assert done.returncode == 0, done.stderr
        (folder,) = experiment.checkpoints.glob("glue/SST-2/*")
        result = read_run(folder)
        assert result is not None
        done_by.append((folder, lines(result), metrics(result)))
    assert done_by[0][0].name == done_by[1][0].name, "stopped in two processes, a run goes on in one"
    torch.testing.assert_close(torch.tensor(done_by[0][1]), torch.tensor(done_by[1][1]), rtol=0, atol=1e-5)
    scores = [(folder / "predictions" / "dev.tsv").read_text().splitlines() for folder, _, _ in done_by]
    assert len(scores[0]) == len(scores[1]) == 24
    assert [line.split("\t")[:2] for line in scores[0]] == [line.split("\t")[:2] for line in scores[1]]


def test_what_a_run_leaves(
    experiment: Experiment, glue_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one command: a model that is built once, start weights that are read once, and rows that are scored once."""
    built, read = [], []
    build, load = Classes.build, torch.load
    monkeypatch.setattr(Classes, "build", lambda *arguments: built.append(1) or build(*arguments))
    monkeypatch.setattr(torch, "load", lambda file, **how: read.append(file) or load(file, **how))
    with caplog.at_level(logging.INFO):
        result = run(experiment, glue_folder, epoch=4, lr="5e-3")
    assert len(built) == 1
    assert len(read) == 1 + (result.best != result.last), "the best weights, where the last ones are not the best"
    folder = result.folder
    assert (
        caplog.messages[0]
        == f"experiment, attention nystrom (num_landmarks=8, conv_kernel_size=5), on glue/SST-2: {folder}"
    )
    assert folder.name.startswith("cp-0001-nystrom-batch8-lr0.005-epoch4-seed0-")
    kept = {f"cp-{epoch:04d}.model" for epoch in (result.best.epoch, result.last.epoch)}
    assert {path.name for path in folder.glob("cp-*")} == kept, "the rest served to resume"
    assert read_run(folder) == result
    assert [epoch.epoch for epoch in result.epochs] == [0, 1, 2, 3]
    assert result.best.metrics["accuracy"] == max(m["accuracy"] for m in metrics(result))
    assert (folder / "tensorboard").is_dir()
    server = (folder / "predictions" / "SST-2.tsv").read_text().splitlines()
    assert server[0] == "index\tprediction"
    assert len(server) == 1 + 9
    rows = [line.split("\t") for line in (folder / "predictions" / "dev.tsv").read_text().splitlines()[1:]]
    right = sum(label == prediction for _, label, prediction, *_ in rows) / len(rows)
    assert right == pytest.approx(result.best.metrics["accuracy"]), "the predictions are the best epoch's"
    first = next(r for r in read_log(folder / "log.jsonl") if r["type"] == "train")
    assert first["learning_rate"] < 5e-3, "the warm-up"
    assert result.exact_share["validation"] < 1.0
    assert "SST-2 train has 60 rows" in " ".join(result.warnings)


def test_every_input_is_of_the_identity(source: Path, tmp_path: Path, glue_folder: Path) -> None:
    """In one folder, whatever decides a result makes a run of its own; whatever does not, does not."""
    experiment = copy_of(source, tmp_path / "one")
    other = tmp_path / "one" / "model" / "cp-0000.model"
    other.write_bytes((source / "model" / "cp-0000.model").read_bytes())
    families = set()

    def name(*overrides: str, device: Device = CPU, **changes: object) -> str:
        found = opened(open_experiment(experiment.folder, overrides), sst2(glue_folder), device, **changes)
        asked = ask(found, found.grid[0])
        families.add(asked.family)
        return asked.folder.name

    base = name()
    of_setting = ("weight_decay=0.5", "adam_beta1=0.8", "adam_beta2=0.9", "adam_eps=1e-8", "max_grad_norm=0.5")
    of_model = ("num_landmarks=4", "dropout_prob=0.2", 'mixed_precision="bf16"')
    overrides = [*(f"pretraining_setting.{each}" for each in of_setting), *(f"model.{each}" for each in of_model)]
    changes: list[dict[str, object]] = [
        *({"checkpoint": "0"}, {"train_rows": 30}, {"length": 31}, {"bucket": 1}, {"pad_to": 32}, {"warmup": 0.5}),
        *({"epoch": 3}, {"batch_size": "16"}, {"lr": "2e-3"}),
    ]
    different = [*map(name, overrides), *(name(**change) for change in changes)]
    # What mixed_precision true amounts to depends on the device.
    devices = [Device(torch.device("cpu"), dtype) for dtype in (None, torch.bfloat16, torch.float16)]
    different += [name("model.mixed_precision=true", device=device) for device in devices]
    assert len({base, *different}) == len(families) == 1 + len(different)
    assert name(seed="1") not in {base, *different}
    assert len(families) == 1 + len(different), "runs of one family differ in their seeds alone"
    assert len({name(device=device) for device in devices}) == 1, "where config.json says it, nothing else does"
    for same in ("model.compile=true", "model.gelu_grad_checkpointing=true", "gpu_setting.inst_per_gpu=1"):
        assert name(same) == base
    one, two = (f'model.attn_type={{"name":"nystrom","implementation":"{by}"}}' for by in ("auto", "torch"))
    assert name(one) == name(two), "the same, computed by another implementation"


def test_seeds_begin_with_heads_of_their_own(experiment: Experiment, glue_folder: Path) -> None:
    found = opened(experiment, sst2(glue_folder), seed="0,1")
    states = [build_model(found, found.grid[place], found.pretrained).model.state_dict() for place in (0, 0, 1)]
    heads = [state["head.dense.weight"] for state in states]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(*(states[place]["encoder.layers.0.attention.query.weight"] for place in (0, 2)))


def test_predictions_follow_the_test_data(experiment: Experiment, tmp_path: Path) -> None:
    data = write_sst2(tmp_path / "data")
    test = data / "SST-2" / "test.tsv"
    content = test.read_text()
    test.unlink()
    target = run(experiment, data, epoch=1).folder / "predictions" / "SST-2.tsv"
    assert not target.exists()
    for rows in (9, 4):
        test.write_text("\n".join(content.splitlines()[: 1 + rows]) + "\n")
        run(experiment, data, epoch=1)
        assert len(target.read_text().splitlines()) == 1 + rows
    assert any("SST-2 test has 4 rows" in warning for warning in opened(experiment, sst2(data)).splits.warnings)
    test.unlink()
    assert run(experiment, data, epoch=1).tested_rows("accuracy") == 0
    assert target.exists(), "of earlier test data"


def test_an_attention_by_flag_holds_for_the_run(
    experiment: Experiment, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("--task", "SST-2", "--glue", glue_folder, "--epoch", 1, "--attention", "local,block_size=4")
    assert run_here(monkeypatch, SCRIPT, "--model", experiment.folder, "--device", "cpu", *flags) == 0
    (folder,) = experiment.checkpoints.glob("glue/SST-2/*")
    for config in (Predictor(folder, "cpu").network.config.model, open_model(folder, None).config):
        assert [(layer.name, layer.model_dump()["block_size"]) for layer in config.attentions] == [("local", 4)] * 2


def test_a_run_that_diverges_does_not_end_the_others(
    experiment: Experiment,
    glue_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--task", "SST-2", "--task", "STS-B", "--epoch", 1, "--batch_size", 1, "--lr", "10,1e-3"]
    flags += ["--set", "pretraining_setting.weight_decay=10"]
    model = ["--model", experiment.folder, "--glue", glue_folder, "--device", "cpu"]
    assert run_here(monkeypatch, SCRIPT, *flags, *model) == 2
    said = capsys.readouterr()
    assert said.err.count("error:") == 1
    assert "2 of the runs ended without a result" in said.err
    assert "batch 1, learning rate 10, seed 0" in said.err
    for task in ("SST-2", "STS-B"):
        assert f"glue/{task}," in said.out, "its table is shown"
        assert len(list(experiment.checkpoints.glob(f"glue/{task}/*/predictions"))) == 1
    assert len(find_unfinished(experiment.checkpoints)) == 2


ACCURACIES = (0.9, 0.1, 0.5)
"""The best of the epochs is the first."""
KEPT = {"cp-0000.model", "cp-0002.model"}


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
        done = {int(path.stem[3:]) for path in (self.experiment / "model" / "glue").rglob("cp-*.model")}
        accuracies = iter(ACCURACIES[max(done, default=-1) + 1 :])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Glue, "metrics", lambda *_: {"accuracy": next(accuracies)})
            return run(open_experiment(self.experiment), self.glue, epoch=3, **changes)

    @property
    def weights(self) -> set[str]:
        return {path.name for path in self.run.glob("cp-*")}

    def probabilities(self) -> list[float]:
        header, *rows = (self.run / "predictions" / "test.tsv").read_text().splitlines()
        return [float(row.split("\t")[header.split("\t").index("p_1")]) for row in rows]


@pytest.fixture(scope="module")
def originals(source: Path, tmp_path_factory: pytest.TempPathFactory, glue_folder: Path) -> dict[str, Place]:
    """A finished run; one killed before its record, one before its predictions."""
    folder = tmp_path_factory.mktemp("results")
    places = {name: Place(folder / name / "e", glue_folder) for name in ("finished", "unrecorded", "silent")}
    for place in places.values():
        copy_of(source, place.experiment)
    places["finished"].finetune()
    for name, function in (("unrecorded", "EpochMetrics"), ("silent", "predict")):
        with pytest.MonkeyPatch.context() as patch:

            def kill(*_: object) -> None:
                raise Killed

            patch.setattr(finetuning_run, function, kill)
            with pytest.raises(Killed):
                places[name].finetune()
    return places


@pytest.fixture
def place(originals: dict[str, Place], tmp_path: Path) -> Callable[[str], Place]:
    def copied(name: str) -> Place:
        shutil.copytree(originals[name].experiment, tmp_path / name / "e")
        return Place(tmp_path / name / "e", originals[name].glue)

    return copied


def test_a_finished_run_is_only_read(place: Callable[[str], Place]) -> None:
    finished = place("finished")
    before = contents(finished.run)
    finished.finetune()
    assert contents(finished.run) == before


@pytest.mark.parametrize("name", ["unrecorded", "silent"])
def test_what_a_kill_prevented_is_made_up_for(name: str, place: Callable[[str], Place]) -> None:
    killed = place(name)
    assert (read_run(killed.run) is None) == (name == "unrecorded")
    assert killed.finetune() == read_run(place("finished").run)
    assert killed.weights == KEPT


def test_predictions_that_are_gone_are_made_again(place: Callable[[str], Place]) -> None:
    finished = place("finished")
    path = finished.run / "predictions" / "dev.tsv"
    whole = path.read_bytes()
    (path.parent / "notes.txt").write_text("mine")
    path.unlink()
    result = finished.finetune()
    assert path.read_bytes() == whole
    assert list(result.tested.files) == [f"predictions/{name}" for name in ("SST-2.tsv", "dev.tsv", "test.tsv")]
    assert (path.parent / "notes.txt").read_text() == "mine"
    path.unlink()
    (finished.run / "cp-0000.model").unlink()
    with pytest.raises(UserError, match=r"cp-0000\.model: no such"):
        finished.finetune()


def test_the_last_epochs_weights_predict_where_they_are_asked_for(place: Callable[[str], Place]) -> None:
    finished = place("finished")
    for predict, epoch in (("last", 2), ("best", 0)):
        result = finished.finetune(predict=predict)
        assert result.tested_epoch == epoch
        assert result.epochs == getattr(read_run(finished.run), "epochs", None), "nothing is trained again"
        found = opened(open_experiment(finished.experiment), sst2(finished.glue))
        model = found.task.target.build(found.config.model).eval()
        model.load_state_dict(decided(read_checkpoint(finished.run / f"cp-{epoch:04d}.model"))["model"])
        with torch.no_grad():
            chances = found.task.target.scores(model, found.test["test"].batch(np.arange(9))).softmax(1)[:, 1].tolist()
        assert chances == pytest.approx(finished.probabilities(), abs=2e-6)
        server = (finished.run / "predictions" / "SST-2.tsv").read_text().splitlines()[1:]
        assert [line.split("\t")[1] for line in server] == [str(int(chance > 0.5)) for chance in chances]
