"""What was predicted for each row of a split, as a table for looking at errors.

Shapes: n rows, C classes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from nystromformer.files.writing import NewFile
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.wording import number_of


def write_scored(path: Path, texts: Texts, scores: Tensor, names: Sequence[str] | None) -> None:
    """Write a TSV: each row's id (its number in the file from 0 on, where `texts` has no ids), the label where there
    is one, the prediction, and the probability of each class in a column p_CLASS; of values the value alone, exactly
    as it is. Rounded, scores of a model that has hardly learned would tie or move, and their correlations with them.

    Args:
        scores: (n, C) logits, or (n, 1) values.
        names: of the classes, None for values.

    Raises:
        UserError: the file cannot be written.
        ValueError: the split has not as many rows as there are scores.
    """
    if len(texts) != len(scores):
        raise ValueError(f"{texts.name}: expected scores of {number_of(len(texts), 'row')}, found {len(scores)}")
    columns = {"id": texts.ids if texts.ids is not None else list(map(str, range(len(texts))))}
    if names is None:
        if texts.labels is not None:
            columns["label"] = list(map(str, texts.labels))
        columns["prediction"] = list(map(repr, scores[:, 0].float().tolist()))
    else:
        if texts.labels is not None:
            columns["label"] = [names[int(label)] for label in texts.labels]
        columns["prediction"] = [names[number] for number in scores.argmax(dim=1).tolist()]
        chances = scores.float().softmax(dim=1).T.tolist()
        columns |= {f"p_{name}": [f"{p:.6f}" for p in column] for name, column in zip(names, chances, strict=True)}
    write_rows(path, list(columns), zip(*columns.values(), strict=True))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows, all or none.

    Raises:
        UserError: the file cannot be written.
    """
    with NewFile(path) as file:
        for row in (header, *rows):
            file.write(("\t".join(row) + "\n").encode())
