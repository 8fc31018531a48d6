"""Fine-tuning runs: killed and resumed, in several processes, in grids, and what they leave."""

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, finetune, sweep, write_sst2, write_stsb
from small import CPU, ROOT, command, run_here

from nystromformer.runs.record import (
    EpochMetrics,
    Run,
    best_combination,
    read_run,
)
from nystromformer.tasks.experiment.folder import Experiment, open_experiment
from nystromformer.tasks.experiment.opening import open_finetuning
from nystromformer.tasks.finetuning.objective import decided
from nystromformer.tasks.finetuning.run import _build, begun_run
from nystromformer.tasks.finetuning.sweep import Finetuned, plan_setup
from nystromformer.tasks.finetuning.tables import table
from nystromformer.tasks.glue.catalog import find_tasks
from nystromformer.tasks.glue.task import Glue
from nystromformer.training import Device
from nystromformer.training.checkpoint import CheckpointFile, find_checkpoints, read_checkpoint
from nystromformer.training.log import read_log
from nystromformer.training.loop import Trainer

NO_DROPOUT = ("model.dropout_prob=0.0",)


@pytest.fixture(scope="module")
def glue_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stsb(write_sst2(tmp_path_factory.mktemp("glue")))


def sst2(folder: Path) -> Glue:
    return Glue(find_tasks("SST-2")[0], folder)


def run(experiment: Experiment, glue_folder: Path, **changes: object) -> Finetuned:
    return finetune(experiment, sst2(glue_folder), sweep(**changes), CPU)


def metrics(result: Run) -> list[dict[str, float]]:
    return [epoch.metrics for epoch in result.epochs]


def lines(result: Run) -> list[tuple[int, float, float]]:
    """Step, loss and, of training, the norm of its gradient, whose scale Adam would hide."""
    records = read_log(Path(result.folder) / "log.jsonl")
    kinds = ("train", "validation")
    return [(r["step"], r["loss"], r.get("gradient_norm", 0.0)) for r in records if r["type"] in kinds]


FLAGS = ("--task", "SST-2", "--batch_size", 4, "--lr", 1e-3, "--epoch", 3, "--device", "cpu")


@pytest.mark.slow
def test_killed_at_any_step_and_resumed_it_ends_in_the_same_bits(
    source: Path, tmp_path: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = copy_of(source, tmp_path / "whole"), copy_of(source, tmp_path / "killed")
    frequent = ("--set", "pretraining_setting.minutes_per_checkpoint=1e-6")
    flags = (*FLAGS, "--glue", glue_folder, *frequent)
    assert run_here(monkeypatch, "code/run_glue.py", "--model", whole.folder, *flags) == 0
    for kill_at in (4, 15, 31):  # the second at an epoch's end, of 15 steps each
        with (tmp_path / "stderr.txt").open("ab") as errors:
            process = subprocess.Popen(command("code/run_glue.py", "--model", killed.folder, *flags), stderr=errors)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            checkpoints = [find_checkpoints(folder) for folder in killed.checkpoints.glob("glue/SST-2/*")]
            if checkpoints and checkpoints[0] and _step(checkpoints[0][-1]) >= kill_at:
                break
            time.sleep(0.002)
        process.kill()
        assert process.wait() < 0, (tmp_path / "stderr.txt").read_text()
    assert run_here(monkeypatch, "code/run_glue.py", "--model", killed.folder, *flags) == 0
    (first,), (second,) = (list(e.checkpoints.glob("glue/SST-2/*")) for e in (whole, killed))
    assert first.name == second.name
    results = [read_run(folder) for folder in (first, second)]
    assert results[0] is not None
    assert results[1] is not None
    assert metrics(results[0]) == metrics(results[1])
    assert lines(results[0]) == lines(results[1]), "no line is lost or written twice"
    for name in ("cp-0002.model", f"cp-{results[0].best.epoch:04d}.model"):
        a, b = (read_checkpoint(folder / name)["model"] for folder in (first, second))
        assert all(torch.equal(a[key], b[key]) for key in a)
    predictions = [(folder / "predictions" / "SST-2.tsv").read_bytes() for folder in (first, second)]
    assert predictions[0] == predictions[1]


def _step(checkpoint: CheckpointFile) -> float:
    """The step of a checkpoint, at 15 steps to an epoch."""
    return 15 * (checkpoint.epoch + 1) if checkpoint.step == float("inf") else checkpoint.step


@pytest.mark.slow
def test_a_stopped_run_exits_as_pretraining_does(experiment: Experiment, glue_folder: Path, tmp_path: Path) -> None:
    flags = ("--model", experiment.folder, *FLAGS, "--epoch", 400, "--glue", glue_folder)
    with (tmp_path / "stderr.txt").open("wb") as errors:
        process = subprocess.Popen(command("code/run_glue.py", *flags), stderr=errors)
    deadline = time.monotonic() + 60
    while not list(experiment.checkpoints.glob("glue/SST-2/*/cp-0000.model")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=60) == 143, (tmp_path / "stderr.txt").read_text()
    assert "stopped by SIGTERM after step" in (tmp_path / "stderr.txt").read_text()
    assert list(experiment.checkpoints.glob("glue/SST-2/*/cp-*-step-*.cp"))


def test_micro_batches_change_no_step(source: Path, tmp_path: Path, glue_folder: Path) -> None:
    curves = []
    for size in (1, 8):
        budget = (f"gpu_setting.inst_per_gpu={size}", "pretraining_setting.batches_per_report=1")
        done = run(copy_of(source, tmp_path / str(size), *NO_DROPOUT, *budget), glue_folder)
        curves.append(lines(done.results[0]))
    assert len(curves[0]) == 18
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_two_processes_are_one(
    layout: str, source: Path, tmp_path: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done_by = []
    settings = (*NO_DROPOUT, "pretraining_setting.batches_per_report=1", f'gpu_setting.parallel="{layout}"')
    flags = [*FLAGS, "--glue", glue_folder, *(flag for override in settings for flag in ("--set", override))]
    # 60 rows: one is left at an epoch's end, so that a process has none.
    flags[flags.index("--batch_size") + 1] = 59
    for processes in (1, 2):
        experiment = copy_of(source, tmp_path / str(processes))
        if processes == 1:
            assert run_here(monkeypatch, "code/run_glue.py", "--model", experiment.folder, *flags) == 0
        else:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
            script = [*launcher, ROOT / "code/run_glue.py", "--model", experiment.folder, *flags]
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


def test_what_a_run_leaves(experiment: Experiment, glue_folder: Path) -> None:
    (result,) = run(experiment, glue_folder, epochs=4, learning_rates=(5e-3,)).results
    folder = Path(result.folder)
    kept = {f"cp-{epoch:04d}.model" for epoch in (result.best.epoch, result.last.epoch)}
    assert {path.name for path in folder.glob("cp-*")} == kept, "the rest served to resume"
    stored = read_run(folder)
    assert stored == result
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


def probabilities(result: Run, split: str) -> list[float]:
    lines = (Path(result.folder) / "predictions" / f"{split}.tsv").read_text().splitlines()
    column = lines[0].split("\t").index("p_1")
    return [float(line.split("\t")[column]) for line in lines[1:]]


def test_the_last_epochs_weights_predict_where_they_are_asked_for(
    experiment: Experiment, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best epoch is here the first of three, by a metric that says so."""
    accuracies = iter([0.9, 0.1, 0.5])
    monkeypatch.setattr(Glue, "metrics", lambda *_: {"accuracy": next(accuracies)})
    made: dict[str, Run] = {}
    for asked in ("best", "last", "best"):
        (made[asked],) = run(experiment, glue_folder, epochs=3, predict=asked).results
        result, definition = made[asked], sst2(glue_folder)
        epoch = {"best": 0, "last": 2}[asked]
        assert result.predictions
        assert result.tested_epoch == epoch
        assert read_run(Path(result.folder)) == result
        assert sorted(result.predictions) == [f"predictions/{name}.tsv" for name in ("SST-2", "dev", "test")]
        model = definition.target.build(experiment.config.model).eval()
        model.load_state_dict(decided(read_checkpoint(Path(result.folder) / f"cp-{epoch:04d}.model"))["model"])
        setup = plan_setup(open_finetuning(experiment, CPU), definition, sweep())
        batch = definition.test(setup.loading)["test"].batch(np.arange(9))
        with torch.no_grad():
            chances = definition.target.scores(model, batch).softmax(1)[:, 1].tolist()
        assert chances == pytest.approx(probabilities(result, "test"), abs=2e-6)
        server = (Path(result.folder) / "predictions" / "SST-2.tsv").read_text().splitlines()[1:]
        assert [line.split("\t")[1] for line in server] == [str(int(chance > 0.5)) for chance in chances]
    assert made["best"].epochs == made["last"].epochs, "nothing is trained again"


def test_a_combination_with_all_its_seeds_goes_before_a_lucky_survivor(
    experiment: Experiment, glue_folder: Path
) -> None:
    (result,) = run(experiment, glue_folder, epochs=1).results

    def finished(rate: float, seed: int, accuracy: float) -> Run:
        settings = replace(result.settings, learning_rate=rate, seed=seed)
        return replace(result, settings=settings, epochs=(EpochMetrics(0, {"loss": 1.0, "accuracy": accuracy}),))

    survivor = [finished(5e-5, 1, 0.99)]
    whole = [finished(rate, seed, rate * 1e4 + seed / 10) for rate in (2e-5, 3e-5) for seed in range(3)]
    results = [*survivor, *whole]
    assert {(r.settings.learning_rate, r.settings.seed) for r in best_combination(results)} == {
        (3e-5, 0),
        (3e-5, 1),
        (3e-5, 2),
    }
    text = table(results)
    rates = [line.split()[1] for line in text.splitlines() if line.split()[0] == str(result.settings.batch_size)]
    assert rates == ["3e-05", "2e-05", "5e-05"]
    assert "1 combination has fewer finished seeds than the first one" in text
    assert "fewer finished seeds" not in table(whole)
    assert "fewer finished seeds" not in table(survivor)


def test_it_learns(experiment: Experiment, glue_folder: Path, tmp_path: Path) -> None:
    data = write_sst2(tmp_path / "more", train=300, dev=100)
    (result,) = run(experiment, data, epochs=4, learning_rates=(5e-3,), batch_sizes=(16,)).results
    assert result.best.metrics["accuracy"] > 0.85, metrics(result)


def test_a_number_is_learned_too(experiment: Experiment, glue_folder: Path) -> None:
    task = Glue(find_tasks("STS-B")[0], glue_folder)
    (result,) = finetune(experiment, task, sweep(), CPU).results
    assert set(result.last.metrics) == {"loss", "pearson_spearman", "pearson", "spearman"}
    done = finetune(experiment, task, sweep(), CPU)
    heading, row, *_ = table(done.results).splitlines()
    assert len(heading) == len(row), "long names widen their columns"
    assert done.splits is not None
    assert "types_BN" in done.splits.train.batch(np.array([0])), "the model tells the two sentences apart"
    rows = (Path(result.folder) / "predictions" / "dev.tsv").read_text().splitlines()
    assert rows[0] == "id\tlabel\tprediction"
    assert not (Path(result.folder) / "predictions" / "STS-B.tsv").exists(), "there is no test split here"


def test_other_landmarks_from_the_same_checkpoint(source: Path, tmp_path: Path, glue_folder: Path) -> None:
    shares = []
    for landmarks in (4, 16):
        experiment = copy_of(source, tmp_path / str(landmarks), f"model.num_landmarks={landmarks}")
        (result,) = run(experiment, glue_folder, epochs=1).results
        shares.append(result.exact_share["validation"])
        assert result.attention[0]["num_landmarks"] == landmarks
    assert shares[0] < shares[1]


def test_another_setting_is_another_run(experiment: Experiment, glue_folder: Path) -> None:
    """Nothing of an earlier run is overwritten."""
    first = run(experiment, glue_folder, epochs=1).results[0]
    other = open_experiment(experiment.folder, ["pretraining_setting.weight_decay=0.5"])
    second = run(other, glue_folder, epochs=1).results[0]
    third = run(experiment, glue_folder, epochs=1, warmup=0.5).results[0]
    assert len({first.folder, second.folder, third.folder}) == len({first.family, second.family, third.family}) == 3
    compiled = open_experiment(experiment.folder, ["model.attention_grad_checkpointing=true"])
    assert run(compiled, glue_folder, epochs=1).results[0].folder == first.folder, "the same numbers, another way"


def test_every_input_is_of_the_identity(
    source: Path, tmp_path: Path, glue_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one folder, whatever decides a result makes a run of its own; whatever does not, does not."""
    experiment = copy_of(source, tmp_path / "one")
    other = tmp_path / "one" / "model" / "cp-0000.model"
    other.write_bytes((source / "model" / "cp-0000.model").read_bytes())
    definition = sst2(glue_folder)

    def name(*overrides: str, device: Device = CPU, **changes: object) -> str:
        wanted = sweep(**changes)
        opened = open_finetuning(open_experiment(experiment.folder, overrides), device, wanted.checkpoint)
        setup = plan_setup(opened, definition, wanted)
        return begun_run(setup, definition.load(setup.loading), wanted.runs[0]).folder.name

    base = name()
    different = [
        *(
            name(override)
            for override in (
                "model.num_landmarks=4",
                "model.dropout_prob=0.2",
                'model.mixed_precision="bf16"',
                *(
                    f"pretraining_setting.{key}"
                    for key in ("weight_decay=0.5", "adam_beta1=0.8", "adam_beta2=0.9", "adam_eps=1e-8")
                ),
                "pretraining_setting.max_grad_norm=0.5",
            )
        ),
        *(
            name(**change)
            for change in (
                {"checkpoint": "0"},
                {"train_rows": 30},
                {"length": 31},
                {"bucket": 1},
                {"pad_to": 32},
                {"warmup": 0.5},
                {"epochs": 3},
                {"seeds": (1,)},
                {"batch_sizes": (16,)},
                {"learning_rates": (2e-3,)},
            )
        ),
    ]
    # What mixed_precision true amounts to depends on the device.
    devices = [Device(torch.device("cpu"), dtype) for dtype in (None, torch.bfloat16, torch.float16)]
    different += [name("model.mixed_precision=true", device=device) for device in devices]
    assert len({base, *different}) == 1 + len(different)
    assert len({name(device=device) for device in devices}) == 1, "where config.json says it, nothing else does"
    plan = "nystromformer.tasks.finetuning.run.PLAN_VERSION"
    unsorted = name(bucket=1)
    with monkeypatch.context() as patch:
        patch.setattr(plan, 0)
        assert name() not in {base, *different}, "batches that are planned otherwise"
        assert name(bucket=1) == unsorted
    for same in ("model.compile=true", "model.gelu_grad_checkpointing=true", "gpu_setting.inst_per_gpu=1"):
        assert name(same) == base
    one, other = (f'model.attn_type={{"name":"nystrom","implementation":"{by}"}}' for by in ("auto", "torch"))
    assert name(one) == name(other), "the same, computed by another implementation"


def test_seeds_begin_with_heads_of_their_own(experiment: Experiment, glue_folder: Path) -> None:
    definition = sst2(glue_folder)
    setup = plan_setup(open_finetuning(experiment, CPU), definition, sweep())
    splits = definition.load(setup.loading)
    heads, encoders = [], []
    for run in sweep(seeds=(0, 0, 1)).runs:
        model = _build(setup, splits, begun_run(setup, splits, run))[0].model
        heads.append(model.state_dict()["head.dense.weight"])
        encoders.append(model.state_dict()["encoder.layers.0.attention.query.weight"])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(encoders[0], encoders[2])


def test_predictions_follow_the_test_data(experiment: Experiment, tmp_path: Path) -> None:
    data = write_sst2(tmp_path / "data")
    test = data / "SST-2" / "test.tsv"
    content = test.read_text()
    test.unlink()
    (result,) = run(experiment, data, epochs=1).results
    target = Path(result.folder) / "predictions" / "SST-2.tsv"
    assert not target.exists()
    test.write_text(content)
    run(experiment, data, epochs=1)
    first = target.read_text()
    assert len(first.splitlines()) == 1 + 9
    test.write_text("\n".join(content.splitlines()[:5]) + "\n")
    (result,) = run(experiment, data, epochs=1).results
    assert len(target.read_text().splitlines()) == 1 + 4
    assert any("SST-2 test has 4 rows" in warning for warning in definition_warnings(data, experiment))
    target.unlink()
    run(experiment, data, epochs=1)
    assert target.exists(), "what was lost is written again"


def definition_warnings(data: Path, experiment: Experiment) -> list[str]:
    definition = sst2(data)
    setup = plan_setup(open_finetuning(experiment, CPU), definition, sweep())
    return definition.load(setup.loading).warnings


def test_a_run_that_diverges_does_not_end_the_others(
    experiment: Experiment,
    glue_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--task", "SST-2", "--task", "STS-B", "--epoch", 1, "--batch_size", 1, "--lr", "10,1e-3"]
    flags += ["--set", "pretraining_setting.weight_decay=10"]
    model = ["--model", experiment.folder, "--glue", glue_folder, "--device", "cpu"]
    assert run_here(monkeypatch, "code/run_glue.py", *flags, *model) == 2
    said = capsys.readouterr()
    assert said.err.count("error:") == 1
    assert "2 of the runs ended without a result" in said.err
    assert "batch 1, learning rate 10, seed 0" in said.err
    for task in ("SST-2", "STS-B"):
        assert f"glue/{task}," in said.out, "its table is shown"
        assert len(list(experiment.checkpoints.glob(f"glue/{task}/*/result.json"))) == 1
        assert len(list(experiment.checkpoints.glob(f"glue/{task}/*/predictions"))) == 1


@pytest.mark.slow
def test_another_division_is_said(
    source: Path, tmp_path: Path, glue_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = copy_of(source, tmp_path / "one", "pretraining_setting.minutes_per_checkpoint=1e-6")
    (result,) = run(experiment, glue_folder).results
    folder = Path(result.folder)
    stopped = _stopped(experiment, glue_folder, folder)
    with caplog.at_level("INFO"):
        other = open_experiment(experiment.folder, ["gpu_setting.inst_per_gpu=2"])
        run(other, glue_folder)
    assert f"changed since {stopped}: gpu_setting.inst_per_gpu: 4 in the checkpoint, 2 now" in caplog.text


def _stopped(experiment: Experiment, glue_folder: Path, folder: Path) -> str:
    """The run's folder as a kill in its first epoch leaves it; returns the checkpoint's name."""
    shutil.rmtree(folder)

    def stop(trainer: Trainer, log: object) -> None:
        original(trainer, log)
        raise KeyboardInterrupt

    original = Trainer._save_between
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_save_between", stop)
        with pytest.raises(KeyboardInterrupt):
            run(experiment, glue_folder)
    (checkpoint,) = find_checkpoints(folder)
    return checkpoint.path.name


def test_baselines_are_kept(
    experiment: Experiment, glue_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--task", "SST-2", "--epoch", 1, "--baselines", "--model", experiment.folder, "--glue", glue_folder]
    assert run_here(monkeypatch, "code/run_glue.py", *flags, "--device", "cpu") == 0
    first = capsys.readouterr().out

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("nystromformer.tasks.finetuning.sweep.words_baseline", refuse)
    assert run_here(monkeypatch, "code/run_glue.py", *flags, "--device", "cpu") == 0
    assert capsys.readouterr().out == first
    assert "tf-idf" in first
