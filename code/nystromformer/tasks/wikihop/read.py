"""QAngaroo's files: a question, its candidate answers, and the texts that together support one of them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nystromformer.config.messages import dotted, in_words
from nystromformer.errors import UserError
from nystromformer.tasks.finetuning.encoded import size_warning

_OFFICIAL_SIZES = {"WikiHop": {"train": 43_738, "dev": 5_129}, "MedHop": {"train": 1_620, "dev": 342}}
_MEDHOP = "MH_"
"""How ids of its instances begin."""
_FIRST_ID = re.compile(rb'"id"\s*:\s*"([^"]*)"')
_FIRST_BYTES = 1 << 20
_HOW_TO_GET = (
    "Download QAngaroo (qangaroo_v1.1.zip) from https://qangaroo.cs.ucl.ac.uk and put train.json and dev.json of its "
    "folder wikihop (or medhop) there."
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


def read_instances(path: Path, skip_unanswerable: bool = False) -> tuple[list[Instance], list[str]]:
    """Read a file such as train.json.

    Args:
        skip_unanswerable: leave out instances whose answer is none of their candidates.

    Returns:
        The instances, and the ids of those that were left out.

    Raises:
        UserError: the file is missing, no JSON or no list of instances; an instance lacks a key, has no candidates or
            the id of another one; an answer is none of the candidates.
    """
    check_file(path)
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        records = TypeAdapter(list[Instance]).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = f"{dotted(first['loc'])}: " if first["loc"] else ""
        raise UserError(f"{path}: expected a JSON list of instances: {place}{in_words(first)}. {_HOW_TO_GET}") from None
    has_answers = any(record.answer is not None for record in records)
    instances, left_out = [], []
    seen: set[str] = set()
    for record in records:
        if record.id in seen:
            raise UserError(f"{path}: two instances have the id {record.id!r}, by which predictions are told apart")
        seen.add(record.id)
        if not has_answers or record.right is not None:
            instances.append(record)
        elif skip_unanswerable:
            left_out.append(record.id)
        else:
            raise UserError(
                f"{path}: instance {record.id}: the answer {record.answer!r:.60} is not among its "
                f"{len(record.candidates)} candidates. Leave such instances out with --skip_unanswerable."
            )
    if not instances:
        raise UserError(f"{path}: expected a list of instances, found none" + " that can be answered" * bool(left_out))
    return instances, left_out


def check_size(ids: Sequence[str], split: str) -> list[str]:
    """A warning where a split, "train" or "dev", has not the official number of instances.

    Args:
        ids: of the split's instances; MedHop's begin with MH_.
    """
    name = "MedHop" if ids and ids[0].startswith(_MEDHOP) else "WikiHop"
    official = _OFFICIAL_SIZES[name].get(split, len(ids))
    return size_warning(f"{name} {split}", len(ids), "instance", official)


def data_name(path: Path) -> str:
    """Whether a file has MedHop's instances or WikiHop's, by the first one's id; MedHop has the same files."""
    if not path.is_file():
        return "WikiHop"  # and `check_file` will say so
    with path.open("rb") as file:
        first = _FIRST_ID.search(file.read(_FIRST_BYTES))
    return "MedHop" if first and first[1].startswith(_MEDHOP.encode()) else "WikiHop"


def check_file(path: Path) -> None:
    """Raise UserError where there is no file, saying how to get it."""
    if not path.is_file():
        raise UserError(f"{path}: no such file. {_HOW_TO_GET}")
