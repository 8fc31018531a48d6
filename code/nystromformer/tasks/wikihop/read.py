"""QAngaroo's files: a question, its candidate answers, and the texts that together support one of them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from nystromformer.config.messages import dotted, quoted
from nystromformer.errors import UserError
from nystromformer.files.reading import read_bytes
from nystromformer.tasks.finetuning.encoded import size_warning

_OFFICIAL_SIZES = {"WikiHop": {"train": 43_738, "dev": 5_129}, "MedHop": {"train": 1_620, "dev": 342}}
_MEDHOP = "MH_"
"""How ids of its instances begin."""
_FIRST_ID = re.compile(rb'"id"\s*:\s*"([^"]*)"')
_FIRST_BYTES = 1 << 20
_MOST_BYTES = 4 << 30
"""All of a file is held in memory; WikiHop's train.json has 0.3 GB."""
_HOW_TO_GET = (
    "Download QAngaroo (qangaroo_v1.1.zip) from https://qangaroo.cs.ucl.ac.uk and put train.json and dev.json of its "
    "folder wikihop (or medhop) there."
)


@dataclass(frozen=True)
class Instance:
    """A question with its candidates and supports, in the file's order.

    answer: number of the right candidate, None where the file has no answers, as hidden test files.
    """

    id: str
    query: str
    candidates: tuple[str, ...]
    supports: tuple[str, ...]
    answer: int | None


class _Record(BaseModel):
    """An instance as files spell it; other keys are ignored."""

    model_config = ConfigDict(strict=True)

    id: str
    query: str
    answer: str | None = None
    candidates: Annotated[list[str], Field(min_length=1)]
    supports: list[str]


def read_instances(path: Path, skip_unanswerable: bool = False) -> tuple[list[Instance], list[str]]:
    """Read a file such as train.json. Of candidates that occur twice in an instance the first one is kept.

    Args:
        skip_unanswerable: leave out instances whose answer is none of their candidates.

    Returns:
        The instances, and the ids of those that were left out.

    Raises:
        UserError: the file is missing, no JSON or no list of instances; an instance lacks a key, has no candidates or
            the id of another one; an answer is none of the candidates.
    """
    records = _read_records(path)
    has_answers = any(record.answer is not None for record in records)
    instances, left_out = [], []
    numbers: dict[str, int] = {}
    for number, record in enumerate(records):
        if record.id in numbers:
            raise UserError(
                f"{path}: instances {numbers[record.id]} and {number} (from 0) have the same id {record.id!r}: "
                "expected different ids, because they identify the predictions"
            )
        numbers[record.id] = number
        candidates = tuple(dict.fromkeys(record.candidates))
        if has_answers and record.answer is None:
            raise UserError(
                f'{path}: instance {record.id}: expected the key "answer", which others of the file have, found none'
            )
        index = candidates.index(record.answer) if record.answer in candidates else None
        if not has_answers or index is not None:
            instances.append(Instance(record.id, record.query, candidates, tuple(record.supports), index))
        elif skip_unanswerable:
            left_out.append(record.id)
        else:
            raise UserError(
                f"{path}: instance {record.id}: the answer {record.answer!r:.60} is not among its {len(candidates)} "
                "candidates. Leave such instances out with --skip_unanswerable."
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
    """Raise UserError where there is no file, saying what was looked for and how to get it."""
    if path.is_file():
        return
    folder = path.parent
    if path.is_dir():
        raise UserError(f"{path}: expected a file such as train.json, found a folder. {_HOW_TO_GET}")
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; looked for {path.name} in it. {_HOW_TO_GET}")
    there = sorted(file.name for file in folder.glob("*.json"))
    raise UserError(
        f"{folder}: looked for {path.name}, found {', '.join(there[:5]) if there else 'no *.json'}. {_HOW_TO_GET}"
    )


def _read_records(path: Path) -> list[_Record]:
    check_file(path)
    content = read_bytes(path, _MOST_BYTES, "a file of WikiHop").removeprefix(codecs.BOM_UTF8)
    try:
        items = from_json(content)
    except ValueError as error:
        raise UserError(
            f"{path}: expected JSON, found {error}: the file is damaged or cut off. {_HOW_TO_GET}"
        ) from None
    if not isinstance(items, list):
        raise UserError(f"{path}: expected a JSON list of instances, found {quoted(items)}. {_HOW_TO_GET}")
    try:
        return TypeAdapter(list[_Record]).validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        number, *where = first["loc"]
        item = items[int(number)]
        named = isinstance(item, dict) and isinstance(item.get("id"), str)
        name = f"instance {item['id']}" if named else f"instance {number} (from 0)"
        place = f"{dotted(tuple(where))}: " if where else ""
        problem = first["msg"].replace("Input should be", "expected")
        raise UserError(f"{path}: {name}: {place}{problem}, found {quoted(first['input'])}") from None
