"""Metrics of documents by kind, by torchmetrics.

Shapes: n rows, C classes or labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nystromformer.tasks.documents.recipe import Answer, Kind
from nystromformer.tasks.documents.targets import predicted
from nystromformer.tasks.finetuning.target import accuracy

MAIN: dict[Kind, str] = {"classes": "accuracy", "several": "micro_f1", "value": "pearson", "ordered": "kappa"}
"""By which an epoch and settings are chosen."""


def score(answer: Answer, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """The kind's metrics, the main one first. Where a metric is undefined (a correlation of constants, the precision of
    a label that no row has) it is 0.

    Args:
        scores: (n, outputs).
        labels: as `numbers_of` gives them.
    """
    scores, labels = scores.detach().cpu().float(), labels.cpu()
    if answer.kind == "value":
        return _of_values(predicted(answer, scores), labels.double() * answer.deviation + answer.mean)
    if answer.kind == "several":
        return _of_several(scores, labels.long())
    if answer.kind == "ordered":
        return _of_ordered(answer, scores, labels)
    # imported here: it takes seconds
    from torchmetrics.functional.classification import multiclass_f1_score

    f1 = multiclass_f1_score(scores.argmax(1), labels, num_classes=len(answer.names), average="macro")
    # Of float64, as that of the other tasks.
    return {"accuracy": accuracy(scores, labels), "macro_f1": f1.item()}


def _of_several(scores: Tensor, labels: Tensor) -> dict[str, float]:
    from torchmetrics.functional.classification import binary_average_precision, multilabel_f1_score

    count, chosen = labels.shape[1], (scores > 0).long()
    figures = {
        f"{average}_f1": multilabel_f1_score(chosen, labels, num_labels=count, average=average).item()
        for average in ("micro", "macro")
    }
    # Of a label that no row has there is none.
    have = [label for label in range(count) if labels[:, label].any()]
    chances = scores.sigmoid()
    found = [binary_average_precision(chances[:, label], labels[:, label]).item() for label in have]
    return figures | {"map": sum(found) / len(found) if found else 0.0}


def _of_ordered(answer: Answer, scores: Tensor, labels: Tensor) -> dict[str, float]:
    from torchmetrics.functional.classification import multiclass_cohen_kappa
    from torchmetrics.functional.regression import mean_absolute_error

    chosen = predicted(answer, scores)
    kappa = multiclass_cohen_kappa(chosen, labels, num_classes=len(answer.names), weights="quadratic").item()
    return {
        "kappa": kappa if kappa == kappa else 0.0,
        "accuracy": float((chosen == labels).to(torch.float64).mean()),
        "mae": mean_absolute_error(chosen.double(), labels.double()).item(),
    }


def _of_values(values: Tensor, labels: Tensor) -> dict[str, float]:
    from torchmetrics.functional.regression import mean_squared_error

    return correlations(values, labels) | {"rmse": mean_squared_error(values, labels, squared=False).item()}


def correlations(values: Tensor, labels: Tensor) -> dict[str, float]:
    """Pearson's and Spearman's correlation of two rows of float64 numbers; 0 where one of them is constant."""
    # imported here: it takes seconds
    from torchmetrics.functional.regression import pearson_corrcoef, spearman_corrcoef

    if is_constant(values) or is_constant(labels):
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": pearson_corrcoef(values, labels).item(),
        "spearman": spearman_corrcoef(values, labels).item(),
    }


def is_constant(values: Tensor) -> bool:
    """Whether all are the same."""
    return bool((values == values[0]).all())
