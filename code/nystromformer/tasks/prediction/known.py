"""What a finished run learned, and from what texts: by what its folder keeps, or by its task's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.tasks.documents.answer import Answer
from nystromformer.tasks.documents.cut import Cut
from nystromformer.tasks.documents.recipe import recipe_from
from nystromformer.tasks.finetuning.recipe import RECIPE_FILE
from nystromformer.tasks.finetuning.results import RunResult
from nystromformer.tasks.glue.catalog import TASKS
from nystromformer.tasks.imdb.read import LABELS, without_breaks


@dataclass(frozen=True)
class Known:
    """A run's texts and labels."""

    answer: Answer
    text: tuple[str, ...]
    """Columns of texts in the data that it learned from: one or two."""
    cut: Cut = Cut("head")  # noqa: RUF009  # immutable
    separator: str = ","
    """Between several labels of one text, in files whose cells are text."""
    has_breaks: bool = False
    """Whether its texts had line breaks of HTML that were taken out."""

    @property
    def is_of_pairs(self) -> bool:
        return len(self.text) > 1

    def cleaned(self, text: str) -> str:
        """A text as those that it learned from were."""
        return without_breaks(text) if self.has_breaks else text


def known_run(result: RunResult, recipe: Mapping[str, Any] | None, folder: Path) -> Known:
    """What a run learned.

    Args:
        recipe: as its folder keeps it; None where it keeps none.

    Raises:
        UserError: of a task whose examples are no texts, or of a table and without a recipe.
    """
    kind, _, name = result.task.partition("/")
    if recipe is not None:
        kept = recipe_from(recipe, folder)
        return Known(kept.answer, kept.text, kept.cut, kept.separator)
    if kind == "imdb" or kind.startswith("imdb-from-"):
        return Known(Answer("classes", LABELS), ("text",), has_breaks=True)
    found = [task for task in TASKS if kind == "glue" and task.name == name]
    if found:
        labels = found[0].labels
        return Known(Answer("value") if labels is None else Answer("classes", labels), found[0].hub_sentences)
    if kind == "documents":
        raise UserError(
            f"{folder / RECIPE_FILE}: no such file, which says what the run learned. Start its command again, which "
            "writes it anew"
        )
    raise UserError(f"{folder}: expected a run of run_classify.py, run_glue.py or run_imdb.py, found {result.task}")
