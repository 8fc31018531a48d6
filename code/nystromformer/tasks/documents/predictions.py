"""The predictions of a split of texts, as a file."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from nystromformer.tables import printable
from nystromformer.tasks.documents.recipe import Answer
from nystromformer.tasks.documents.targets import as_text, names_of, predicted, probabilities
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.predictions import write_rows


def write_split(path: Path, texts: Texts, scores: Tensor, answer: Answer, separator: str = ",") -> None:
    """Write a TSV: each row's id (its number in the file from 0 on, where `texts` has no ids), the label where there
    is one, the prediction, and the probability of each class in a column p_CLASS. Values are exactly as they
    are: rounded, those of a model that has hardly learned would tie.

    Args:
        scores: (n, outputs).
        separator: between several labels of a text.

    Raises:
        UserError: the file cannot be written.
    """
    ids = map(str, range(len(texts))) if texts.ids is None else texts.ids
    columns = {"id": list(map(printable, ids))}
    if texts.labels is not None:
        labels = torch.from_numpy(texts.labels)
        right = labels.double() * answer.deviation + answer.mean if answer.kind == "value" else labels.long()
        columns["label"] = [as_text(label, separator) for label in names_of(answer, right)]
    chosen = predicted(answer, scores)
    if answer.kind == "value":
        columns["prediction"] = list(map(repr, chosen.tolist()))
    else:
        columns["prediction"] = [as_text(label, separator) for label in names_of(answer, chosen)]
        for name, chances in zip(answer.names, probabilities(answer, scores).T.tolist(), strict=True):
            columns[f"p_{name}"] = [f"{chance:.6f}" for chance in chances]
    write_rows(path, list(columns), zip(*columns.values(), strict=True))
