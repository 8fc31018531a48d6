"""Predictions as files: for GLUE's server, and for looking at each row.

Shapes: n rows, C classes.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.score_tables import write_rows, write_scored
from nystromformer.tasks.glue.catalog import GlueTask
from nystromformer.tasks.glue.metrics import check_scores


def write_predictions(task: GlueTask, split: str, scores: Tensor, folder: Path) -> Path:
    """Write a test split's predictions in the form that GLUE's server takes, and return the file, such as MNLI-m.tsv.

    scores: (n, C) logits, or (n, 1) values, which are clipped to 0 … 5; in the order of the split's rows.

    Raises:
        UserError: the file cannot be written.
        ValueError: the task has no such split, or not one for the server; the scores' shape does not fit; one is not
            finite.
    """
    name = task.split(split).prediction_file
    if name is None:
        raise ValueError(f"{task.name}: expected a test split of {', '.join(task.test_splits)}, found {split!r}")
    check_scores(task, scores)
    path = folder / name
    write_rows(path, ("index", "prediction"), ((str(row), text) for row, text in enumerate(_spelled(task, scores))))
    return path


def write_table(task: GlueTask, split: str, texts: Texts, scores: Tensor, folder: Path) -> Path:
    """Write what was predicted for each row of a split, and return the file, such as dev.tsv.

    See `write_scored`.

    Raises:
        UserError: the file cannot be written.
        ValueError: the scores' shape does not fit; one is not finite.
    """
    check_scores(task, scores)
    # Some file systems take ax.tsv for AX.tsv, which is the server's.
    path = folder / ("diagnostic.tsv" if split == "ax" else f"{split}.tsv")
    write_scored(path, texts, scores, task.labels)
    return path


def _spelled(task: GlueTask, scores: Tensor) -> list[str]:
    """Predictions as GLUE's server spells them."""
    if task.labels is None:
        return [f"{max(0.0, min(value, 5.0)):.3f}" for value in scores[:, 0].tolist()]
    return [task.labels[number] for number in scores.argmax(dim=1).tolist()]
