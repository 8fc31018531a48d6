"""Predictions as files: for GLUE's server, and for looking at each row.

Shapes: n rows, C classes.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.predictions import write_rows, write_scored
from nystromformer.tasks.glue.table_task import GlueTask


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
