"""Metrics of documents by kind, by torchmetrics.

Shapes: n rows, C classes or labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nystromformer.tasks.documents.recipe import Answer, Kind
from nystromformer.tasks.finetuning.target import accuracy

MAIN: dict[Kind, str] = {"classes": "accuracy", "several": "micro_f1", "value": "pearson", "ordered": "kappa"}
"""By which an epoch and settings are chosen."""


def score(answer: Answer, scores: Tensor, labels: Tensor) -> dict[str, float]:
    """The kind's metrics, the main one first. Where a metric is undefined (a correlation of constants, the precision of
    a label that no row has) it is 0.
    """
    # imported here: it takes seconds
    from torchmetrics.functional import classification, regression

    scores, labels = scores.detach().cpu().float(), labels.cpu()
    chosen, count = answer.predicted(scores), len(answer.names)
    if answer.kind == "value":
        right = answer.value(labels)
        rmse = regression.mean_squared_error(chosen, right, squared=False).item()
        return correlations(chosen, right) | {"rmse": rmse}
    if answer.kind == "several":
        labels, chances = labels.long(), scores.sigmoid()
        figures = {
            f"{average}_f1": classification.multilabel_f1_score(chosen, labels, count, average=average).item()
            for average in ("micro", "macro")
        }
        # Of a label that no row has there is none.
        have = [label for label in range(count) if labels[:, label].any()]
        found = [classification.binary_average_precision(chances[:, k], labels[:, k]).item() for k in have]
        return figures | {"map": sum(found) / len(found) if found else 0.0}
    if answer.kind == "ordered":
        kappa = classification.multiclass_cohen_kappa(chosen, labels, count, weights="quadratic").item()
        return {
            "kappa": kappa if kappa == kappa else 0.0,
            "accuracy": float((chosen == labels).to(torch.float64).mean()),
            "mae": regression.mean_absolute_error(chosen.double(), labels.double()).item(),
        }
    f1 = classification.multiclass_f1_score(chosen, labels, num_classes=count, average="macro")
    # Of float64, as that of the other tasks.
    return {"accuracy": accuracy(scores, labels), "macro_f1": f1.item()}


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
