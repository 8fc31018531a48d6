"""What a run leaves about its predictions of a split: each row's, the worst mistakes, and counts of each label.

Shapes: n rows, C classes or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from nystromformer.tables import printable
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.targets import as_text, names_of, predicted, probabilities
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Target

_WORST = 50
_BEGINNING = 200
"""Characters of a text that are shown."""


def write_split(
    folder: Path, split: str, texts: Texts, scores: Tensor, answer: Answer, target: Target, separator: str
) -> None:
    """Write `SPLIT.tsv`: id, label where there is one, prediction and chances of each row; and, of a split with labels,
    `SPLIT-worst.tsv`, and `SPLIT-confusion.tsv` or, of several labels, `SPLIT-labels.tsv`.

    Raises:
        UserError: a file cannot be written.
    """
    ids = list(texts.ids) if texts.ids is not None else [str(number) for number in range(len(texts))]
    columns = {"id": [printable(each) for each in ids]}
    labels = None if texts.labels is None else torch.from_numpy(texts.labels)
    chosen = predicted(answer, scores)
    if labels is not None:
        columns["label"] = [as_text(label, separator) for label in names_of(answer, _right(answer, labels))]
    columns["prediction"] = [as_text(label, separator) for label in names_of(answer, chosen)]
    if answer.kind != "value":
        for name, chances in zip(answer.names, probabilities(answer, scores).T.tolist(), strict=True):
            columns[f"p_{name}"] = [f"{chance:.6f}" for chance in chances]
    write_rows(folder / f"{split}.tsv", list(columns), zip(*columns.values(), strict=True))
    if labels is None:
        return
    wrong = chosen != _right(answer, labels)
    losses = target.losses(scores, labels)
    _write_worst(folder / f"{split}-worst.tsv", texts, columns, losses, wrong.any(1) if wrong.ndim > 1 else wrong)
    if answer.kind == "several":
        _write_labels(folder / f"{split}-labels.tsv", answer.names, chosen, labels.long())
    elif answer.kind != "value":
        # Imported here: it takes seconds.
        from torchmetrics.functional.classification import multiclass_confusion_matrix

        counts_CC = multiclass_confusion_matrix(chosen, labels, num_classes=len(answer.names)).tolist()
        rows = ([name, *map(str, row)] for name, row in zip(answer.names, counts_CC, strict=True))
        write_rows(folder / f"{split}-confusion.tsv", ("right, predicted", *answer.names), rows)


def _right(answer: Answer, labels: Tensor) -> Tensor:
    """Labels as `predicted` gives predictions."""
    if answer.kind == "value":
        return labels.double() * answer.deviation + answer.mean
    return labels.long()


def _write_worst(path: Path, texts: Texts, columns: dict[str, list[str]], losses: Tensor, wrong: Tensor) -> None:
    """The mistakes with the highest losses, the worst first; of values, the rows that are furthest off."""
    order = [number for number in losses.argsort(descending=True, stable=True).tolist() if wrong[number]][:_WORST]
    rows: list[Sequence[str]] = []
    for number in order:
        cells = [columns[name][number] for name in ("id", "label", "prediction")]
        shown = [printable(each[number][:_BEGINNING]) for each in (texts.first, texts.second) if each is not None]
        rows.append([*cells, f"{float(losses[number]):.4f}", *shown])
    names = ("text",) if texts.second is None else ("first", "second")
    write_rows(path, ("id", "label", "prediction", "loss", *names), rows)


def _write_labels(path: Path, names: Sequence[str], chosen: Tensor, labels: Tensor) -> None:
    """Of each label: rows that have it, that were given it, both, and precision, recall and F1."""
    rows = []
    for number, name in enumerate(names):
        have, given = labels[:, number] > 0, chosen[:, number] > 0
        both = int((have & given).sum())
        counts = (int(have.sum()), int(given.sum()), both)
        precision, recall = (both / max(count, 1) for count in (counts[1], counts[0]))
        f1 = 2 * both / max(counts[0] + counts[1], 1)
        rows.append([name, *map(str, counts), *(f"{figure:.4f}" for figure in (precision, recall, f1))])
    write_rows(path, ("label", "rows", "predicted", "right", "precision", "recall", "f1"), rows)
