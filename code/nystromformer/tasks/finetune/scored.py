"""What was predicted for each row of a split with labels, as a table for looking at errors.

Shapes: n rows, C classes.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from torch import Tensor

from nystromformer.files import NewFile
from nystromformer.tasks.finetune.examples import Texts


def write_scored(path: Path, texts: Texts, scores: Tensor, names: Sequence[str] | None) -> None:
    """Write a TSV: each row's id (its number in the file from 0 on, where `texts` has no ids), the label, the
    prediction, and the probability of each class in a column p_CLASS; of values the value alone, as it is.

    Args:
        scores: (n, C) logits, or (n, 1) values.
        names: of the classes, None for values.

    Raises:
        UserError: the file cannot be written.
        ValueError: the split has no labels, or not as many as there are scores.
    """
    if texts.labels is None or len(texts.labels) != len(scores):
        found = "none" if texts.labels is None else len(texts.labels)
        raise ValueError(f"{texts.name}: expected labels for {len(scores)} rows of scores, found {found}")
    ids = texts.ids if texts.ids is not None else list(map(str, range(len(texts))))
    if names is None:
        labels, values = ([f"{x:.3f}" for x in column] for column in (texts.labels.tolist(), scores[:, 0].tolist()))
        write_rows(path, ("id", "label", "prediction"), zip(ids, labels, values, strict=True))
        return
    chances = ([f"{p:.6f}" for p in row] for row in scores.float().softmax(dim=1).tolist())
    rows = zip(ids, texts.labels.tolist(), scores.argmax(dim=1).tolist(), chances, strict=True)
    write_rows(
        path,
        ("id", "label", "prediction", *(f"p_{name}" for name in names)),
        ((row_id, names[int(label)], names[found], *row) for row_id, label, found, row in rows),
    )


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write tab-separated rows, all or none.

    Raises:
        UserError: the file cannot be written.
    """
    with NewFile(path) as file:
        for row in (header, *rows):
            file.write(("\t".join(row) + "\n").encode())
