"""Predictions as files: for GLUE's server, and for looking at errors on a dev split.

Shapes: n rows, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from nystromformer.files import NewFile
from nystromformer.tasks.finetune.examples import Texts
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
    _write(path, ("index", "prediction"), ((str(row), text) for row, text in enumerate(_spelled(task, scores))))
    return path


def write_dev_predictions(task: GlueTask, texts: Texts, scores: Tensor, path: Path) -> None:
    """Write what was predicted for each row of a split with labels.

    A row has its id (its number in the file from 0 on, where `texts` has no ids), the label, the prediction, and the
    probability of each class in a column p_CLASS; for a task without classes the values alone, as they are.

    Raises:
        UserError: the file cannot be written.
        ValueError: the split has no labels; the scores' shape does not fit; one is not finite.
    """
    check_scores(task, scores)
    if texts.labels is None or len(texts.labels) != len(scores):
        found = "none" if texts.labels is None else len(texts.labels)
        raise ValueError(f"{texts.name}: expected labels for {len(scores)} rows of scores, found {found}")
    ids = texts.ids if texts.ids is not None else list(map(str, range(len(texts))))
    if task.labels is None:
        labels, predictions = (
            [f"{value:.3f}" for value in values] for values in (texts.labels.tolist(), scores[:, 0].tolist())
        )
        _write(path, ("id", "label", "prediction"), zip(ids, labels, predictions, strict=True))
        return
    names = task.labels
    probabilities = ([f"{p:.6f}" for p in row] for row in scores.float().softmax(dim=1).tolist())
    rows = zip(ids, texts.labels.tolist(), _spelled(task, scores), probabilities, strict=True)
    _write(
        path,
        ("id", "label", "prediction", *(f"p_{name}" for name in names)),
        ((row_id, names[int(label)], prediction, *chances) for row_id, label, prediction, chances in rows),
    )


def _spelled(task: GlueTask, scores: Tensor) -> list[str]:
    """Predictions as GLUE's server spells them."""
    if task.labels is None:
        return [f"{max(0.0, min(value, 5.0)):.3f}" for value in scores[:, 0].tolist()]
    return [task.labels[number] for number in scores.argmax(dim=1).tolist()]


def _write(path: Path, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    with NewFile(path) as file:
        for row in (header, *rows):
            file.write(("\t".join(row) + "\n").encode())
