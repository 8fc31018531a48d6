"""What a finished run on texts needs to predict others, as its folder keeps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.kept import STRICT, checked
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.finetuning.recipe import RECIPE_FILE, TOKENIZER_SHA256, read_recipe
from nystromformer.tasks.finetuning.texts import without_breaks


@dataclass(frozen=True)
class Recipe:
    """How texts become rows, and scores labels."""

    __pydantic_config__ = STRICT

    task: str
    answer: Answer
    text: tuple[str, ...]
    """Columns of texts: one or two."""
    label: tuple[str, ...]
    length: int
    """Tokens of the longest row."""
    sentence_types: bool
    """Whether the model tells the two texts of a pair apart."""
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

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def open_recipe(folder: Path) -> tuple[Recipe, str]:
    """The recipe that a run's folder keeps, and the SHA-256 of its tokenizer.

    Raises:
        UserError: the folder keeps none, as that of a run whose examples are no texts, or a damaged one.
    """
    data = read_recipe(folder)
    if data is None:
        raise UserError(
            f"{folder}: expected a run of run_classify.py, run_glue.py or run_imdb.py, found no {RECIPE_FILE}, which "
            "says what a run learned. If it is one, start its command again, which writes it anew"
        )
    try:
        sha256 = checked(str, data.pop(TOKENIZER_SHA256, None))
        return checked(Recipe, data), sha256
    except ValueError as error:
        raise UserError(f"{folder / RECIPE_FILE}: expected what a run says of its task: {error}") from None
