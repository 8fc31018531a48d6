"""What is said of predictions: GLUE's metrics, by torchmetrics, and files for its server and for people.

Shapes: n rows, C classes.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nystromformer.tasks.documents.metrics import correlations, is_constant
from nystromformer.tasks.finetuning.examples import Labels, Texts
from nystromformer.tasks.finetuning.predictions import write_rows, write_scored
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


def write_predictions(task: GlueTask, split: str, texts: Texts, scores: Tensor, folder: Path) -> None:
    """Write what was predicted for each row of a split, such as dev.tsv (see `write_scored`), and of a test split also
    the file that GLUE's server takes, such as MNLI-m.tsv.

    scores: (n, C) logits, or (n, 1) values, which the server gets clipped to 0 … 5; in the order of the split's rows.

    Raises:
        UserError: a file cannot be written.
    """
    # Some file systems take ax.tsv for AX.tsv, which is the server's.
    write_scored(folder / ("diagnostic.tsv" if split == "ax" else f"{split}.tsv"), texts, scores, task.labels)
    name = task.split(split).prediction_file
    if name is None:
        return
    if task.labels is None:
        spelled = [f"{max(0.0, min(value, 5.0)):.3f}" for value in scores[:, 0].tolist()]
    else:
        spelled = [task.labels[number] for number in scores.argmax(dim=1).tolist()]
    write_rows(folder / name, ("index", "prediction"), ((str(row), text) for row, text in enumerate(spelled)))
