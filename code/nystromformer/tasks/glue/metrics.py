"""GLUE's metrics, by torchmetrics.

Shapes: n rows, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nystromformer.tasks.documents.metrics import correlations, is_constant
from nystromformer.tasks.finetuning.examples import Labels
from nystromformer.tasks.glue.table_task import GlueTask


def score(task: GlueTask, scores: Tensor, labels: Tensor | Labels) -> dict[str, float]:
    """The task's metrics in its order, each a fraction (1.0 is best).

    scores: logits (n, C), or values (n, 1) where the label is a number; labels: (n,), class numbers or values.
    Class 1 is the positive one of F1. Where a metric is undefined (F1 without positives, Matthews' and other
    correlations of constants) it is 0.0.
    """
    target = torch.as_tensor(labels).cpu()
    if task.labels is None:
        values = correlations(scores[:, 0].detach().cpu().double(), target.double())
        values["pearson_spearman"] = (values["pearson"] + values["spearman"]) / 2
    else:
        values = _classification(task, scores.argmax(dim=1).cpu(), target)
    return {metric: values[metric] for metric in task.metrics}


def _classification(task: GlueTask, predicted: Tensor, target: Tensor) -> dict[str, float]:
    # imported here: it takes seconds
    from torchmetrics.functional.classification import (
        binary_f1_score,
        binary_matthews_corrcoef,
        multiclass_accuracy,
    )

    correct = multiclass_accuracy(predicted, target, num_classes=task.num_outputs, average="micro")
    values = {"accuracy": correct.item()}
    if "f1" in task.metrics:
        values["f1"] = binary_f1_score(predicted, target).item()
    if "matthews" in task.metrics:
        # torchmetrics gives 1 or -1 where both are constant
        constant = is_constant(predicted) or is_constant(target)
        values["matthews"] = 0.0 if constant else binary_matthews_corrcoef(predicted, target).item()
    return values
