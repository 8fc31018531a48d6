"""What a finished run on texts learned and needs to predict others, as its folder keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nystromformer.errors import UserError
from nystromformer.files.checked_json import STRICT, checked
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.finetuning.encoded import without_breaks
from nystromformer.tasks.finetuning.examples import Texts

Kind = Literal["classes", "several", "value", "ordered"]
"""One of some classes, several at once, a value, or one of ordered classes."""
KINDS: tuple[Kind, ...] = get_args(Kind)


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

    @property
    def outputs(self) -> int:
        """Of the head."""
        return 1 if self.kind == "value" else len(self.names) - (self.kind == "ordered")


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

    def texts_of(self, first: Sequence[str], second: Sequence[str] | None) -> Texts:
        """Texts, or pairs, as those that it learned from were."""
        others = None if second is None else [self.cleaned(text) for text in second]
        return Texts("texts", [self.cleaned(text) for text in first], others)


def recipe_in(texts: object, source: Path) -> Recipe:
    """What a run's record, or its checkpoint, says of its texts.

    Raises:
        UserError: nothing, as that of a task that predicts no others, or something else.
    """
    if texts is None:
        raise UserError(
            f"{source}: expected a run of run_classify.py, run_glue.py or run_imdb.py, found another task's"
        )
    try:
        return checked(Recipe, texts)
    except ValueError as error:
        raise UserError(f"{source}: expected a run's description of its texts, found something else: {error}") from None
