"""What a finished run on documents needs to predict others, as its folder keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.kept import STRICT, checked
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.finetuning.recipe import RECIPE_FILE, TOKENIZER_SHA256


@dataclass(frozen=True)
class Recipe:
    """How texts become rows, and scores labels."""

    __pydantic_config__ = STRICT

    task: str
    answer: Answer
    text: tuple[str, ...]
    """Columns of texts: one or two."""
    label: tuple[str, ...]
    separator: str
    """Between several labels."""
    cut: Cut
    length: int
    """Tokens of the longest row."""
    sentence_types: bool
    """Whether the model tells the two texts of a pair apart."""

    def as_data(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def recipe_from(data: Mapping[str, Any], folder: Path) -> Recipe:
    """The recipe that a run's folder keeps.

    Args:
        data: as `read_recipe` gives it.

    Raises:
        UserError: the data are none; says where.
    """
    try:
        return checked(Recipe, {key: value for key, value in data.items() if key != TOKENIZER_SHA256})
    except ValueError as error:
        raise UserError(f"{folder / RECIPE_FILE}: expected what a run says of its task: {error}") from None
