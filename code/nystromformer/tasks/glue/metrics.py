"""GLUE's metrics, by torchmetrics.

Shapes: n rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nystromformer.tasks.finetuning.examples import Labels
from nystromformer.tasks.glue.catalog import GlueTask, Metric


def score(task: GlueTask, scores: Tensor, labels: Tensor | Labels) -> dict[str, float]:
    """The task's metrics in its order, each a fraction (1.0 is best).

    scores: logits (n, C), or values (n, 1) where the label is a number; labels: (n,), class numbers or values.
    Class 1 is the positive one of F1. Where a metric is undefined (F1 without positives, Matthews' and other
    correlations of constants) it is 0.0.

    Raises:
        ValueError: the shapes do not fit, there are no rows, or a score is not finite.
    """
    check_scores(task, scores)
    target = torch.as_tensor(labels).cpu()
    if len(scores) == 0 or target.shape != scores.shape[:1]:
        raise ValueError(
            f"{task.name}: expected at least one row and a label for each, found scores of shape {tuple(scores.shape)} "
            f"and labels of shape {tuple(target.shape)}"
        )
    if task.labels is None:
        values = _correlations(scores[:, 0].detach().cpu().double(), target.double())
    else:
        values = _classification(task, scores.argmax(dim=1).cpu(), target)
    return {metric: values[metric] for metric in task.metrics}


def check_scores(task: GlueTask, scores: Tensor) -> None:
    """Refuse scores that cannot be the task's.

    Raises:
        ValueError: they are not of shape (n, C), or not finite.
    """
    if scores.ndim != 2 or scores.shape[1] != task.num_outputs:
        raise ValueError(f"{task.name}: expected scores of shape (n, {task.num_outputs}), found {tuple(scores.shape)}")
    bad = int((~scores.isfinite()).any(dim=1).sum())
    if bad:
        raise ValueError(f"{task.name}: expected finite scores, found NaN or infinity in {bad} of {len(scores)} rows")


def _classification(task: GlueTask, predicted: Tensor, target: Tensor) -> dict[Metric, float]:
    # imported here: it takes seconds
    from torchmetrics.functional.classification import (
        binary_f1_score,
        binary_matthews_corrcoef,
        multiclass_accuracy,
    )

    correct = multiclass_accuracy(predicted, target, num_classes=task.num_outputs, average="micro")
    values: dict[Metric, float] = {"accuracy": correct.item()}
    if "f1" in task.metrics:
        values["f1"] = binary_f1_score(predicted, target).item()
    if "matthews" in task.metrics:
        # torchmetrics gives 1 or -1 where both are constant
        constant = _is_constant(predicted) or _is_constant(target)
        values["matthews"] = 0.0 if constant else binary_matthews_corrcoef(predicted, target).item()
    return values


def _correlations(predicted: Tensor, target: Tensor) -> dict[Metric, float]:
    # imported here: it takes seconds
    from torchmetrics.functional.regression import pearson_corrcoef, spearman_corrcoef

    if _is_constant(predicted) or _is_constant(target):
        return {"pearson_spearman": 0.0, "pearson": 0.0, "spearman": 0.0}
    pearson = pearson_corrcoef(predicted, target).item()
    spearman = spearman_corrcoef(predicted, target).item()
    return {"pearson_spearman": (pearson + spearman) / 2, "pearson": pearson, "spearman": spearman}


def _is_constant(values: Tensor) -> bool:
    return bool((values == values[0]).all())
