"""QAngaroo's files: a question, its candidate answers, and the texts that together support one of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nystromformer.errors import UserError
from nystromformer.tasks.wikihop.records import list_items
from nystromformer.wording import number_of

log = logging.getLogger(__name__)

_OFFICIAL_SIZES = {"WikiHop": {"train": 43_738, "dev": 5_129}, "MedHop": {"train": 1_620, "dev": 342}}
_HOW_TO_GET = (
    "Download QAngaroo (qangaroo_v1.1.zip) from https://qangaroo.cs.ucl.ac.uk and put train.json and dev.json of its "
    "folder wikihop (or medhop) there."
)
_LISTS = ("candidates", "supports")


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


def read_instances(path: Path, skip_unanswerable: bool = False) -> list[Instance]:
    """Read a file such as train.json. Of candidates that occur twice in an instance the first one is kept.

    Args:
        skip_unanswerable: leave out instances whose answer is none of their candidates, and log how many.

    Raises:
        UserError: the file is missing, no JSON or no list of instances; an instance lacks a key, has no candidates or
            the id of another one; an answer is none of the candidates.
    """
    instances, left_out = read_and_leave_out(path, skip_unanswerable)
    log_left_out(path, left_out)
    return instances


def read_and_leave_out(path: Path, skip_unanswerable: bool) -> tuple[list[Instance], list[str]]:
    """`read_instances`' instances and the ids of those that it leaves out, without logging them."""
    records = _load(path)
    has_answers = any(isinstance(record, dict) and "answer" in record for record in records)
    instances, left_out = [], []
    numbers: dict[str, int] = {}
    for number, record in enumerate(records):
        instance, is_unanswerable = _instance(path, number, record, has_answers)
        if instance.id in numbers:
            raise UserError(
                f"{path}: instances {numbers[instance.id]} and {number} (from 0) have the same id {instance.id!r}: "
                "expected ids that differ, by which predictions are told apart"
            )
        numbers[instance.id] = number
        if not is_unanswerable:
            instances.append(instance)
        elif skip_unanswerable:
            left_out.append(instance.id)
        else:
            raise UserError(
                f"{path}: instance {instance.id}: the answer {record['answer']!r:.60} is none of its "
                f"{len(instance.candidates)} candidates. Leave such instances out with --skip_unanswerable."
            )
    if not instances:
        raise UserError(f"{path}: expected a list of instances, found none" + " that can be answered" * bool(left_out))
    return instances, left_out


def log_left_out(path: Path, ids: Sequence[str]) -> None:
    """Log how many instances were left out as unanswerable, if any."""
    if ids:
        left_out = number_of(len(ids), "instance")
        log.warning("%s: left out %s whose answer is no candidate, %s first", path, left_out, ids[0])


def check_size(ids: Sequence[str], split: str) -> str | None:
    """A sentence where a split, "train" or "dev", has not the official number of instances.

    Args:
        ids: of the split's instances; MedHop's begin with MH_.
    """
    name = "MedHop" if ids and ids[0].startswith("MH_") else "WikiHop"
    official = _OFFICIAL_SIZES[name].get(split)
    if official is None or len(ids) == official:
        return None
    return (
        f"{name} {split} has {number_of(len(ids), 'instance')}, the official one has {official:,}: "
        "figures on it do not compare with published ones"
    )


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


def _load(path: Path) -> list[Any]:
    check_file(path)
    return list(list_items(path, _HOW_TO_GET))


def _instance(path: Path, number: int, record: Any, has_answers: bool) -> tuple[Instance, bool]:
    """An instance, and whether its answer is none of its candidates."""
    if not isinstance(record, dict):
        raise UserError(f"{path}: instance {number} (from 0): expected an object, found {_kind(record)}")
    name = f"instance {record['id']}" if isinstance(record.get("id"), str) else f"instance {number} (from 0)"
    problem = next(_problems(record, has_answers), None)
    if problem is not None:
        raise UserError(f"{path}: {name}: {problem}")
    candidates = tuple(dict.fromkeys(record["candidates"]))
    answer = record["answer"] if has_answers else None
    index = candidates.index(answer) if answer in candidates else None
    instance = Instance(record["id"], record["query"], candidates, tuple(record["supports"]), index)
    return instance, has_answers and index is None


def _problems(record: dict[str, Any], has_answers: bool) -> Iterator[str]:
    """What is wrong with a record; only the first of it can be relied on."""
    keys = ["id", "query", *_LISTS] + ["answer"] * has_answers
    for key in keys:
        if key not in record:
            keys_there = ", ".join(map(repr, record)) or "none"
            others = ", which others of the file have" if key == "answer" else ""
            yield f'expected the key "{key}"{others}, found {keys_there:.200}'
        value = record[key]
        expected, items = ("a list of texts", value) if key in _LISTS else ("a text", [value])
        if not isinstance(items, list):
            yield f'"{key}": expected {expected}, found {_kind(value)}'
        for item in items:
            if not isinstance(item, str):
                yield f'"{key}": expected {expected}, found {_kind(item)}' + " in it" * (key in _LISTS)
        if not _is_unicode(items):
            yield f'"{key}": expected text, found half of a surrogate pair, which is no character'
    if not record["candidates"]:
        yield '"candidates": expected at least one, found an empty list'


def _is_unicode(texts: Sequence[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
