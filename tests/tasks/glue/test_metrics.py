"""GLUE's metrics against those of scikit-learn and scipy, and the files of predictions."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.glue.catalog import TASKS, find_tasks
from nystromformer.tasks.glue.table_task import GlueTask
from nystromformer.tasks.glue.task import score, write_predictions


def task(name: str) -> GlueTask:
    (only,) = find_tasks(name)
    return only


def logits(classes: list[int], width: int, seed: int = 0) -> torch.Tensor:
    scores = torch.randn(len(classes), width, generator=torch.Generator().manual_seed(seed))
    best = scores.max(dim=1).values + 0.1
    return scores.scatter(1, torch.tensor(classes)[:, None], best[:, None])


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=12))
def test_f1_accuracy_and_matthews(pairs: list[tuple[int, int]]) -> None:
    chosen, label = map(list, zip(*pairs, strict=True))
    scored = score(task("MRPC"), logits(chosen, 2), np.array(label))
    f1, accuracy = metrics.f1_score(label, chosen, zero_division=0), metrics.accuracy_score(label, chosen)
    assert scored == pytest.approx({"f1": f1, "accuracy": accuracy}, abs=1e-6)
    matthews = metrics.matthews_corrcoef(label, chosen) if len(set(pairs)) > 1 else 0.0
    assert score(task("CoLA"), logits(chosen, 2), torch.tensor(label)) == pytest.approx(
        {"matthews": matthews}, abs=1e-6
    )


@settings(max_examples=100)
@given(
    # few values: many ties, and constants; wide ones and small ones
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.0, 0.25, 1.0, 2.5, 3.8, 5.0])), min_size=2, max_size=12),
    st.sampled_from([1e-5, 1.0, 1e4]),
    st.sampled_from([0.0, 2.5]),
)
def test_correlations(pairs: list[tuple[int, float]], scale: float, shift: float) -> None:
    values = np.array([pair[0] for pair in pairs]) * scale + shift
    label = np.array([pair[1] for pair in pairs], dtype=np.float32)
    scored = score(task("STS-B"), torch.tensor(values)[:, None], label)
    if len(set(values)) == 1 or len(set(label)) == 1:
        assert set(scored.values()) == {0.0}
        return
    assert scored["pearson"] == pytest.approx(stats.pearsonr(values, label.astype(float)).statistic, abs=1e-5)
    # torchmetrics adds 1e-6 to the product of the ranks' deviations, and ranks in float32
    assert scored["spearman"] == pytest.approx(stats.spearmanr(values, label).statistic, abs=1e-4)
    assert scored["pearson_spearman"] == pytest.approx((scored["pearson"] + scored["spearman"]) / 2)


@pytest.mark.parametrize("each", TASKS, ids=lambda each: each.name)
def test_files_for_the_server_and_for_people(tmp_path: Path, each: GlueTask) -> None:
    if each.labels is None:
        scores = torch.tensor([[-0.2], [-0.0], [1.23456], [5.7]])
        spelled = ["0.000", "0.000", "1.235", "5.000"]
    else:
        classes = [0, 1, len(each.labels) - 1, 0]
        scores, spelled = logits(classes, len(each.labels)), [each.labels[number] for number in classes]
    for split in (*each.dev_splits, *each.test_splits):
        write_predictions(each, split, Texts(split, ["a"] * 4), scores, tmp_path / "new")
    for split in each.test_splits:
        lines = (tmp_path / "new" / str(each.split(split).prediction_file)).read_bytes().decode().split("\n")
        assert lines == ["index\tprediction", *(f"{n}\t{text}" for n, text in enumerate(spelled)), ""]
    # Also where upper and lower case are one.
    names = {path.name.lower() for path in (tmp_path / "new").iterdir()}
    assert len(names) == len(each.dev_splits) + 2 * len(each.test_splits)


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-5, 1e-3, 1.0]))
@settings(max_examples=25)
def test_the_metrics_can_be_computed_of_the_file(seed: int, width: float) -> None:
    """Values are neither clipped nor rounded: those of a model that has hardly learned are close together."""
    random = np.random.default_rng(seed)
    labels = random.choice(np.arange(26) / 5, 40).astype(np.float32)
    assume(len(set(labels.tolist())) > 1)
    scores = torch.from_numpy((2.5 + width * random.normal(size=(40, 1))).astype(np.float32))
    texts = Texts("STS-B dev", ["a"] * 40, ["b"] * 40, labels)
    with tempfile.TemporaryDirectory() as folder:
        write_predictions(task("STS-B"), "dev", texts, scores, Path(folder))
        rows = [line.split("\t") for line in (Path(folder) / "dev.tsv").read_text().splitlines()[1:]]
    x, y = (np.array([float(row[column]) for row in rows]) for column in (2, 1))
    assert x.astype(np.float32).tolist() == scores[:, 0].tolist()
    scored = score(task("STS-B"), scores, labels)
    assert stats.pearsonr(x, y).statistic == pytest.approx(scored["pearson"], abs=1e-6)
    assert stats.spearmanr(x, y).statistic == pytest.approx(scored["spearman"], abs=1e-6)
