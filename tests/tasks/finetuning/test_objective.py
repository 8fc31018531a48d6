"""Runs that learn for a metric that is no sum over examples: thresholds, batches, resuming, predictions."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from finetuning import copy_of, finetune, made_rows, write_table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, fbeta_score, precision_recall_curve, roc_auc_score
from small import run_here, stop_at

from nystromformer.interop.experiments.open_model import open_model
from nystromformer.prediction.predictor import Predictor
from nystromformer.runs.objective import METHODS, WITH_TARGET, ObjectiveSettings, objective_of
from nystromformer.runs.record import Run
from nystromformer.tasks.documents.question import Question
from nystromformer.tasks.documents.task import Documents
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.finetuning.objective import choose_threshold, measure
from nystromformer.tasks.finetuning.plan import epoch_batches
from nystromformer.training.checkpoint import read_checkpoint
from nystromformer.training.log import read_log

SCRIPT = "code/run_classify.py"
PAIRS = [(name, method) for name, methods in METHODS.items() for method in methods]
QUICK = (("average_precision", "eban"),)
TRAINED = [
    pytest.param(pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS if pair[1] != "cross_entropy"
]
ROWS = st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=20).filter(
    lambda rows: 0 < sum(label for _, label in rows) < len(rows)
)


def wanted(name: str, method: str | None = None, **changes: object) -> ObjectiveSettings:
    given = {"method": method, "target": 0.6 if name in WITH_TARGET else None, **changes}
    parts = [f"{key}={str(value).lower()}" for key, value in given.items() if value is not None]
    found = objective_of(",".join([name, *parts]))
    assert found is not None
    return found


@given(ROWS, st.sampled_from(sorted(METHODS)))
def test_no_threshold_is_better_than_the_chosen_one(rows: list[tuple[int, int]], name: str) -> None:
    scores, labels = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    settings = wanted(name)
    chosen = choose_threshold(settings, scores, labels)

    def value(threshold: float) -> float:
        told = scores > threshold
        found, named, ones = (told & (labels == 1)).sum(), told.sum(), labels.sum()
        precision, recall = found / max(1, named), found / ones
        if name == "f_beta":
            return float(fbeta_score(labels, told, beta=1.0, zero_division=0))
        if name == "precision_at_recall":
            return float(precision) if recall >= 0.6 else -1.0
        if name == "recall_at_precision":
            return float(recall) if precision >= 0.6 and named else float(precision) - 2
        return float((told == labels).mean())

    assert value(chosen) >= max(map(value, np.arange(-4, 4, 0.5))) - 1e-9


@given(ROWS)
def test_metrics_are_those_of_scikit_learn(rows: list[tuple[int, int]]) -> None:
    scores, labels = (np.array(column, dtype=float) for column in zip(*rows, strict=True))

    def found(name: str) -> float:
        return measure(wanted(name), scores, labels, 0.0)[name]

    precisions, recalls, _ = precision_recall_curve(labels, scores)
    assert found("auroc") == pytest.approx(roc_auc_score(labels, scores), abs=1e-5)
    assert found("average_precision") == pytest.approx(average_precision_score(labels, scores), abs=1e-5)
    assert found("f_beta") == pytest.approx(fbeta_score(labels, scores > 0, beta=1.0, zero_division=0))
    assert found("precision_at_recall") == pytest.approx(precisions[recalls >= 0.6].max())
    # Its last point, precision 1 at recall 0, is no threshold.
    assert found("recall_at_precision") == pytest.approx(np.append(recalls[:-1][precisions[:-1] >= 0.6], 0.0).max())


@given(st.integers(10, 200), st.integers(1, 9), st.integers(1, 4), st.integers(0, 5))
def test_stratified_batches_have_their_share_of_positives(count: int, batch: int, pool: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths, labels = random.integers(1, 40, count), np.zeros(count, dtype=np.int64)
    labels[random.permutation(count)[: max(1, count // 5)]] = 1
    batches = epoch_batches(lengths, batch, seed, 0, pool, labels)
    assert sorted(np.concatenate(batches).tolist()) == list(range(count))
    for part in batches:
        # Windows of an even order: at most one more or less, and one more where pools meet.
        assert abs(labels[part].sum() - labels.mean() * len(part)) <= 2


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    folder, parts = tmp_path_factory.mktemp("tables"), []
    for name, count, seed in (("train", 40, 0), ("test", 20, 1)):
        rows = [(text, "yes" if label == "yes" else "no") for text, label in made_rows(count, seed)]
        parts.append(str(write_table(folder / f"{name}.csv", ["body", "label"], rows)))
    return Documents(Question(parts[0], "body", "label", parts[1], validation="0.4"))


def trained(experiment: Experiment, tables: Documents, settings: ObjectiveSettings | None, **changes: object) -> Run:
    (run,) = finetune(experiment, tables, objective=settings, **changes).results
    return run


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = read_checkpoint(run.folder / "cp-0001.model")["model"]
    return weights


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.fixture(scope="module")
def plain(source: Path, tables: Documents, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(copy_of(source, tmp_path_factory.mktemp("plain") / "e"), tables, None)


@pytest.mark.parametrize("pair", [("auroc", "eban"), ("f_beta", "dual"), ("auroc", "cross_entropy")])
def test_as_long_as_it_warms_up_a_run_is_that_of_cross_entropy(
    pair: tuple[str, str], source: Path, tables: Documents, plain: Run, tmp_path: Path
) -> None:
    settings = wanted(*pair, warm_start=None if pair[1] == "cross_entropy" else 1.0)
    run = trained(copy_of(source, tmp_path / "e"), tables, settings)
    assert_same(weights_of(run), weights_of(plain))
    assert run.main_metric == pair[0]
    assert run.best.metrics[pair[0]] > 0


@pytest.mark.parametrize("pair", TRAINED)
def test_a_stopped_run_ends_as_one_that_was_not(
    pair: tuple[str, str], source: Path, tables: Documents, plain: Run, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Multipliers, thresholds and their optimizer's state are part of the checkpoint."""
    settings, still = wanted(*pair, warm_start=0.2, stratify=True), "model.dropout_prob=0"
    whole = trained(copy_of(source, tmp_path / "whole", still), tables, settings)
    apart = copy_of(source, tmp_path / "apart", still)
    with monkeypatch.context() as patched:
        stop_at(4, patched)
        assert finetune(apart, tables, objective=settings).stopped_by is not None
    saved = read_checkpoint(max(apart.checkpoints.rglob("*.cp")))["model"]
    assert pair == ("auroc", "eban") or [name for name in saved if name.startswith("objective.")], "it has variables"
    resumed = trained(apart, tables, settings)
    assert_same(weights_of(resumed), weights_of(whole))
    assert resumed.epochs == whole.epochs
    assert not [name for name in weights_of(whole) if name.startswith("objective.")], "which only training needs"
    assert not torch.equal(weights_of(whole)["head.dense.weight"], weights_of(plain)["head.dense.weight"])
    # Cut into micro-batches, all but pairs are the same up to rounding.
    if pair != ("auroc", "eban"):
        small = copy_of(source, tmp_path / "small", still, "gpu_setting.inst_per_gpu=1")
        for name, value in weights_of(trained(small, tables, settings)).items():
            torch.testing.assert_close(value, weights_of(whole)[name], atol=2e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def decided(source: Path, tables: Documents, tmp_path_factory: pytest.TempPathFactory) -> Run:
    with pytest.MonkeyPatch.context() as patch:  # so few rows have none of their own
        patch.setattr("nystromformer.tasks.finetuning.trainable.temperature_of", lambda *_: 1.5)
        return trained(copy_of(source, tmp_path_factory.mktemp("f2") / "e"), tables, wanted("f_beta", beta=2.0))


def test_predictions_follow_the_threshold(decided: Run, tables: Documents) -> None:
    """The run's own files, a loaded run and an exported one."""
    with (decided.folder / "predictions" / "test.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    told = [row["prediction"] for row in rows]
    assert tables.tested is not None
    found = Predictor(decided.folder, "cpu")(list(tables.tested.first))
    assert found["prediction"].tolist() == told
    assert [label == "yes" for label in told] == [float(row["p_yes"]) > 0.5 for row in rows]
    truth = [row["label"] == "yes" for row in rows]
    expected = fbeta_score(truth, [label == "yes" for label in told], beta=2.0, zero_division=0)
    assert decided.test_metrics["f_beta"] == pytest.approx(expected)
    threshold = decided.best.metrics["threshold"]
    assert threshold != 0
    with (decided.folder / "predictions" / "validation.tsv").open(newline="") as file:
        held_out = list(csv.DictReader(file, delimiter="\t"))
    right = np.mean([row["prediction"] == row["label"] for row in held_out])
    assert decided.best.metrics["accuracy"] == pytest.approx(right), "the table shows what the files have"
    content = open_model(decided.folder, None).content["model"]
    raw = read_checkpoint(decided.folder / f"cp-{decided.best.epoch:04d}.model")["model"]
    assert not [name for name in content if name.startswith("objective.")]
    bias = "head.classifier.bias"
    temperature = decided.best.metrics["temperature"]
    reports = [line for line in read_log(decided.folder / "log.jsonl") if line["type"] == "train"]
    assert reports[-1]["multiplier"] != 1.0
    expected_bias = (raw[bias] - torch.tensor([0.0, threshold])) / temperature
    torch.testing.assert_close(content[bias], expected_bias)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("f1", "f1: expected cross_entropy alone, or one of f_beta"),
        ("f_beta,2", "f_beta,2: expected cross_entropy alone"),
        ("f_beta,method=eban", "expected a method of dual, cross_entropy, found 'eban'"),
        ("auroc,beta=2", "auroc by eban has no beta; expected method, stratify, warm_start"),
        ("auroc,method=cross_entropy,warm_start=0.1", "auroc by cross_entropy has no warm_start"),
        ("f_beta,beta=0", "beta: expected greater than 0, found 0"),
        ("precision_at_recall", "expected target=SHARE with it, such as precision_at_recall,target=0.9"),
        ("auroc,stratify=yes", "stratify: expected a valid boolean"),
        ("auroc --kind ordered,order=no/yes", "expected a task of two classes"),
        ("auroc --class_weights balanced", "expected no --class_weights"),
    ],
)
def test_bad_flags(
    objective: str, expected: str, source: Path, tables: Documents, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copied = copy_of(source, tmp_path / "e")
    place = ("--model", copied.folder, "--train", tables.question.train, "--text", "body", "--label", "label")
    assert run_here(monkeypatch, SCRIPT, *place, "--objective", *objective.split(), "--device", "cpu") == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not list(copied.checkpoints.glob("documents/**/cp-*"))


def test_a_table_of_three_classes_and_one_of_a_single_label_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = copy_of(source, tmp_path / "e")
    rows = [(text, number % 3) for number, (text, _) in enumerate(made_rows(30))]
    three = write_table(tmp_path / "three.csv", ["body", "label"], rows)
    lonely = write_table(tmp_path / "lonely.csv", ["body", "label"], [(text, "no") for text, _ in rows[:20]])
    train = write_table(tmp_path / "train.csv", ["body", "label"], [(t, ("no", "yes")[n % 2]) for t, n in rows])
    place = ("--model", copied.folder, "--text", "body", "--label", "label", "--device", "cpu", "--objective", "auroc")
    assert run_here(monkeypatch, SCRIPT, *place, "--train", three) == 2
    assert "expected a task of two classes, found 3 classes" in capsys.readouterr().err
    assert run_here(monkeypatch, SCRIPT, *place, "--train", train, "--validation", lonely) == 2
    assert "expected labels 0 and 1 in the validation data, found only 0" in " ".join(capsys.readouterr().err.split())
