"""What is learned of each kind, and its metrics: against scikit-learn's, and against what the words say."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from finetuning import made_rows
from sklearn import metrics
from torch import Tensor

from nystromformer.runs.figures import Spread, shown
from nystromformer.tasks.documents.metrics import MAIN, score
from nystromformer.tasks.documents.recipe import Answer, write_split
from nystromformer.tasks.documents.task import balanced_weights
from nystromformer.tasks.finetuning.examples import Texts

CLASSES = Answer("classes", ("a", "b", "c"))
SEVERAL = Answer("several", ("a", "b", "c"))
ORDERED = Answer("ordered", ("1", "2", "3", "4"))
VALUE = Answer("value", (), 50.0, 10.0)


def scores_of(answer: Answer, rows: int = 40, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, answer.outputs, generator=torch.Generator().manual_seed(seed))


def labels_of(answer: Answer, rows: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if answer.kind == "several":
        return torch.randint(0, 2, (rows, 3), generator=generator).float()
    if answer.kind == "value":
        return torch.randn(rows, generator=generator)
    return torch.randint(0, len(answer.names), (rows,), generator=generator)


def test_metrics_of_classes() -> None:
    scores, labels = scores_of(CLASSES), labels_of(CLASSES)
    found, chosen = score(CLASSES, scores, labels), scores.argmax(1)
    assert found["accuracy"] == metrics.accuracy_score(labels, chosen)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(labels, chosen, average="macro"), abs=1e-6)


def test_metrics_of_several_labels() -> None:
    scores, labels = scores_of(SEVERAL), labels_of(SEVERAL)
    found, chosen = score(SEVERAL, scores, labels), scores > 0
    for average in ("micro", "macro"):
        assert found[f"{average}_f1"] == pytest.approx(metrics.f1_score(labels, chosen, average=average), abs=1e-6)
    assert found["map"] == pytest.approx(metrics.average_precision_score(labels, scores, average="macro"), abs=1e-6)
    labels[:, 1] = 0
    others = metrics.average_precision_score(labels[:, [0, 2]], scores[:, [0, 2]], average="macro")
    assert score(SEVERAL, scores, labels)["map"] == pytest.approx(others, abs=1e-6), "without a label that no row has"


def test_metrics_of_ordered_classes() -> None:
    scores, labels = scores_of(ORDERED), labels_of(ORDERED)
    found, chosen = score(ORDERED, scores, labels), ORDERED.predicted(scores)
    assert found["kappa"] == pytest.approx(metrics.cohen_kappa_score(labels, chosen, weights="quadratic"), abs=1e-6)
    assert found["mae"] == pytest.approx(metrics.mean_absolute_error(labels, chosen))
    assert found["accuracy"] == metrics.accuracy_score(labels, chosen)
    same = score(ORDERED, torch.full((3, 3), 5.0), torch.full((3,), 3))
    assert same == {"kappa": 0.0, "accuracy": 1.0, "mae": 0.0}, "undefined is 0"


def test_metrics_of_values_are_in_their_units() -> None:
    scores, labels = scores_of(VALUE), labels_of(VALUE)
    found = score(VALUE, scores, labels)
    values, right = 10 * scores[:, 0].double() + 50, 10 * labels.double() + 50
    assert found["rmse"] == pytest.approx(metrics.root_mean_squared_error(right, values), rel=1e-6)
    assert found["pearson"] == pytest.approx(np.corrcoef(values, right)[0, 1], abs=1e-6)
    assert score(VALUE, torch.ones(4, 1), labels[:4])["pearson"] == 0.0


def test_chances_of_ordered_classes() -> None:
    scores = scores_of(ORDERED, 200)
    chances = ORDERED.probabilities(scores)
    assert (chances >= 0).all()
    torch.testing.assert_close(chances.sum(1), torch.ones(200))
    median = (chances.cumsum(1) < 0.5).sum(1)
    assert torch.equal(ORDERED.predicted(scores), median)
    torch.testing.assert_close(ORDERED.probabilities(torch.zeros(1, 3)), torch.tensor([[0.5, 0.0, 0.0, 0.5]]))


@pytest.mark.parametrize("answer", [CLASSES, SEVERAL, ORDERED, VALUE], ids=lambda answer: answer.kind)
def test_losses_have_their_least_at_the_label(answer: Answer) -> None:
    labels = labels_of(answer, 6)
    scores = torch.zeros(6, answer.outputs, requires_grad=True)
    target = answer.target()
    first = target.losses(scores, labels)
    assert first.shape == (6,)
    optimizer = torch.optim.SGD([scores], 0.4)
    for _ in range(150):
        optimizer.zero_grad()
        target.losses(scores, labels).sum().backward()
        optimizer.step()
    right = labels.long() if answer.kind != "value" else labels.double() * 10 + 50
    torch.testing.assert_close(answer.predicted(scores.detach()), right, atol=1e-3, rtol=0)


def test_weights_of_classes() -> None:
    scores, labels = scores_of(CLASSES, 6), torch.tensor([0, 0, 0, 1, 1, 2])
    weights = balanced_weights(CLASSES, labels.numpy())
    assert weights == pytest.approx([6 / 9, 1.0, 2.0])
    assert sum(weights[label] for label in labels.tolist()) == pytest.approx(6), "1 in the mean over the rows"
    expected = F.cross_entropy(scores, labels, reduction="none") * torch.tensor(weights)[labels]
    torch.testing.assert_close(CLASSES.target(weights).losses(scores, labels), expected)
    assert balanced_weights(CLASSES, np.asarray([0, 0, 2, 2])) == [1.0, 1.0, 1.0], "one has no rows"
    sets = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    both = Answer("several", ("a", "b"))
    assert balanced_weights(both, sets.numpy()) == [3.0, 1.0]
    losses = both.target([3.0, 1.0]).losses(torch.zeros(4, 2), sets)
    torch.testing.assert_close(losses, np.log(2) * torch.tensor([4.0, 2.0, 2.0, 2.0]), check_dtype=False)
    one, heavy = (ORDERED.target(each).losses(scores_of(ORDERED, 4), torch.arange(4)) for each in (None, [1, 2, 3, 4]))
    torch.testing.assert_close(heavy, one * torch.tensor([1.0, 2.0, 3.0, 4.0]))


NAMES = ("$10-$20", "a", "日本")


@pytest.mark.parametrize(
    "answer", [Answer("classes", NAMES), SEVERAL, ORDERED, VALUE], ids=lambda answer: str(answer.kind)
)
def test_files(tmp_path: Path, answer: Answer) -> None:
    scores, labels = scores_of(answer), labels_of(answer)
    texts = Texts("t", [f"{text}\tand\nmore" for text, _ in made_rows(40)], labels=labels.numpy())
    write_split(tmp_path / "test.tsv", texts, scores, answer, "; ")
    lines = (tmp_path / "test.tsv").read_text().splitlines()
    assert len(lines) == 41
    assert {len(line.split("\t")) for line in lines} == {3 + len(answer.names)}
    write_split(tmp_path / "unlabelled.tsv", replace(texts, labels=None), scores, answer, "; ")
    header, *rows = (line.split("\t") for line in (tmp_path / "unlabelled.tsv").read_text().splitlines())
    assert header == ["id", "prediction", *(f"p_{name}" for name in answer.names)]
    assert [row[1:] for row in rows] == [line.split("\t")[2:] for line in lines[1:]]


def test_errors_are_shown_in_units() -> None:
    assert shown("rmse", Spread(12.3456, None)) == "12.35"
    assert shown("mae_test", Spread(0.5, 0.0123)) == "0.5 ± 0.012"
    assert shown(MAIN["ordered"], Spread(0.5, 0.01)) == "50.0 ± 1.0"
