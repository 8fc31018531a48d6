"""What a finished run on texts learned and needs to predict others, as its folder keeps it; and its predictions.

Shapes: n rows, C classes or labels; outputs as `Answer.outputs` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked
from nystromformer.tables import printable
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.finetuning.encoded import without_breaks
from nystromformer.tasks.finetuning.examples import Texts
from nystromformer.tasks.finetuning.predictions import write_rows
from nystromformer.tasks.finetuning.target import Classes, Ordered, Pooled, Several, Value

Kind = Literal["classes", "several", "value", "ordered"]
"""One of some classes, several at once, a value, or one of ordered classes."""
KINDS: tuple[Kind, ...] = get_args(Kind)
_TARGETS: dict[Kind, type[Pooled]] = {"classes": Classes, "several": Several, "value": Value, "ordered": Ordered}


@dataclass(frozen=True)
class Answer:
    """What is learned of each text, and how its label becomes a number and back."""

    __pydantic_config__ = STRICT

    kind: Kind
    names: tuple[str, ...] = ()
    """Of the classes, in the order of their numbers; none of a value."""
    mean: float = 0.0
    deviation: float = 1.0
    """Of the training rows' values: what is learned is how many deviations a value is from their mean."""

    def target(self, weights: Sequence[float] | None = None) -> Pooled:
        """What is learned."""
        return _TARGETS[self.kind](len(self.names) or 1, weights=None if weights is None else tuple(weights))

    @property
    def outputs(self) -> int:
        """Of the head."""
        return self.target().outputs

    def predicted(self, scores: Tensor) -> Tensor:
        """Class numbers (n,), of ordered classes the median; for several labels 0 or 1 of each, (n, C); values (n,)."""
        if self.kind == "value":
            return self.value(scores[:, 0])
        if self.kind == "several":
            return (scores > 0).long()
        if self.kind == "ordered":
            return (scores.float().cummin(1).values > 0).sum(1)
        return scores.argmax(1)

    def value(self, learned: Tensor) -> Tensor:
        """Values in the table's own units, (n,) float64."""
        return learned.double() * self.deviation + self.mean

    def probabilities(self, scores: Tensor) -> Tensor:
        """Of each class or label, (n, C) float32; of several labels the sum is not 1. Not for values.

        Of ordered classes, the chances of higher ones are made to fall first: each is at most the one before.
        """
        scores = scores.float()
        if self.kind == "classes":
            return scores.softmax(1)
        if self.kind == "several":
            return scores.sigmoid()
        return _between(scores.sigmoid().cummin(1).values)

    def class_scores(self, scores: Tensor) -> Tensor:
        """What grows with the chance of each class or label and has a gradient everywhere, (n, C); values (n, 1).

        Of ordered classes, their chances, which are not made to fall here as in `probabilities`.
        """
        return _between(scores.sigmoid()) if self.kind == "ordered" else scores

    def names_of(self, chosen: Tensor) -> list[Any]:
        """Of each row the name of its class, the names of its labels, or its value."""
        if self.kind == "value":
            return chosen.tolist()
        if self.kind == "several":
            return [[name for name, has in zip(self.names, row, strict=True) if has] for row in chosen.tolist()]
        return [self.names[number] for number in chosen.tolist()]


def _between(higher: Tensor) -> Tensor:
    """Chances of ordered classes (n, C) from those of higher ones than each but the last."""
    ones, zeros = higher.new_ones(len(higher), 1), higher.new_zeros(len(higher), 1)
    return torch.cat([ones, higher], 1) - torch.cat([higher, zeros], 1)


def as_text(label: Any, separator: str) -> str:
    """What `Answer.names_of` gives for a row, for files whose cells are text."""
    if isinstance(label, float):
        return f"{label:.7g}"  # as many digits as float32 has
    return label if isinstance(label, str) else separator.join(label)


@dataclass(frozen=True)
class Recipe:
    """How texts become rows, and scores labels."""

    __pydantic_config__ = STRICT

    answer: Answer
    text: tuple[str, ...]
    """Columns of texts: one or two."""
    label: tuple[str, ...]
    separator: str = ","
    """Between several labels of one text, in files whose cells are text."""
    cut: Cut = Cut("head")  # noqa: RUF009  # immutable
    has_breaks: bool = False
    """Whether its texts had line breaks of HTML that were taken out."""

    @property
    def is_of_pairs(self) -> bool:
        return len(self.text) > 1

    def cleaned(self, text: str) -> str:
        """A text as those that it learned from were."""
        return without_breaks(text) if self.has_breaks else text


def recipe_in(texts: object, source: Path) -> Recipe:
    """What a run's record, or its checkpoint, says of its texts; None is that of a task that predicts no others."""
    if texts is None:
        raise UserError(
            f"{source}: expected a run of run_classify.py, run_glue.py or run_imdb.py, found another task's"
        )
    try:
        return checked(Recipe, texts)
    except ValueError as error:
        raise UserError(f"{source}: expected a run's description of its texts, found something else: {error}") from None


def write_split(path: Path, texts: Texts, scores: Tensor, answer: Answer, separator: str = ",") -> None:
    """Write the predictions of a split as a TSV: each row's id (its number in the file from 0 on, where `texts` has no
    ids), the label where there is one, the prediction, and the probability of each class in a column p_CLASS. Values
    are exactly as they are: rounded, those of a model that has hardly learned would tie.
    """
    ids = map(str, range(len(texts))) if texts.ids is None else texts.ids
    columns = {"id": list(map(printable, ids))}
    if texts.labels is not None:
        labels = torch.from_numpy(texts.labels)
        right = answer.value(labels) if answer.kind == "value" else labels.long()
        columns["label"] = [as_text(label, separator) for label in answer.names_of(right)]
    chosen = answer.predicted(scores)
    if answer.kind == "value":
        columns["prediction"] = list(map(repr, chosen.tolist()))
    else:
        columns["prediction"] = [as_text(label, separator) for label in answer.names_of(chosen)]
        for name, chances in zip(answer.names, answer.probabilities(scores).T.tolist(), strict=True):
            columns[f"p_{name}"] = [f"{chance:.6f}" for chance in chances]
    write_rows(path, list(columns), zip(*columns.values(), strict=True))
