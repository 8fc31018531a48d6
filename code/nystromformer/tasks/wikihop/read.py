"""QAngaroo's files: a question, its candidate answers, and the texts that together support one of them."""

from __future__ import annotations

import codecs
from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nystromformer.config.messages import dotted, in_words
from nystromformer.errors import UserError

_HOW_TO_GET = (
    "Download QAngaroo (qangaroo_v1.1.zip) from https://qangaroo.cs.ucl.ac.uk and put train.json and dev.json of its "
    "folder wikihop there."
)


class Instance(BaseModel):
    """A question with its candidates and supports, as files spell it; other keys are ignored. Of candidates that occur
    twice the first one is kept. answer: None where the file has none, as hidden test files.
    """

    model_config = ConfigDict(strict=True)

    id: str
    query: str
    answer: str | None = None
    candidates: Annotated[list[str], Field(min_length=1), AfterValidator(lambda texts: list(dict.fromkeys(texts)))]
    supports: list[str]

    @property
    def right(self) -> int | None:
        """Number of the right candidate; None where the answer is none of them."""
        return self.candidates.index(self.answer) if self.answer in self.candidates else None


def read_instances(path: Path) -> list[Instance]:
    """Read a file such as train.json, in which each answer is one of its candidates or none has an answer."""
    if not path.is_file():
        raise UserError(f"{path}: no such file. {_HOW_TO_GET}")
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        instances = TypeAdapter(list[Instance]).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f"{dotted(first['loc'])}: " if first["loc"] else ""
        raise UserError(f"{path}: expected a JSON list of instances: {place}{in_words(first)}. {_HOW_TO_GET}") from None
    if not instances:
        raise UserError(f"{path}: expected a list of instances, found none")
    if twice := [name for name, count in Counter(each.id for each in instances).items() if count > 1]:
        raise UserError(f"{path}: two instances have the id {twice[0]!r}, by which predictions are told apart")
    if any(instance.answer is not None for instance in instances):
        for instance in instances:
            if instance.right is None:
                raise UserError(
                    f"{path}: instance {instance.id}: the answer {instance.answer!r:.60} is not among its "
                    f"{len(instance.candidates)} candidates"
                )
    return instances
