"""pydantic's errors with the path that a user sees in the file, what was found, and the nearest valid key or name."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]
KeysAt = Callable[[Path, Mapping[str, Any]], Iterable[str]]
"""From where an object stands, and what it holds, to the keys that it may have."""

_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Problem:
    """One mistake in a configuration: where, and in words what is wrong."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


class ImpossibleError(ValueError):
    """Values that are each right but cannot stand together; pydantic turns it into a ValidationError."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def quoted(value: object) -> str:
    """`value` as JSON on one line, shortened where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 8]} ... {text[-3:]}"


def dotted(path: Path) -> str:
    """``("model", "attn_type", 3, "name")`` as ``model.attn_type[3].name``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def nearest(word: object, valid: Iterable[str]) -> str:
    """A question that names the valid word that was meant, if any."""
    found = get_close_matches(str(word)[:_LONGEST_VALUE].lower(), valid, n=1, cutoff=0.7)
    return f"; did you mean {found[0]}?" if found else ""


def describe_errors(error: ValidationError, data: object, keys_at: KeysAt) -> list[Problem]:
    """Every mistake that was found in the data.

    Args:
        keys_at: the valid keys of each object, for keys that are unknown.
    """
    return [problem for details in error.errors(include_url=False) for problem in _problems(details, data, keys_at)]


def in_words(details: ErrorDetails) -> str:
    """pydantic's own message as a part of ours, with what was found."""
    if details["type"] in ("missing", "union_tag_not_found"):
        return "missing"
    text = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if details["type"] == "model_type":
        text = "expected an object {...}"  # pydantic names our classes
    hint = nearest(details["input"], re.findall("'([^']+)'", text)) if isinstance(details["input"], str) else ""
    return f"{text[0].lower()}{text[1:]}, found {quoted(details['input'])}{hint}"


def _problems(details: ErrorDetails, data: object, keys_at: KeysAt) -> list[Problem]:
    path, parent = _locate(details, data)
    context = details.get("ctx", {})
    if isinstance(cause := context.get("error"), ImpossibleError):
        return [Problem(path + problem.path, problem.text) for problem in cause.problems]
    if details["type"] == "extra_forbidden":
        valid = list(keys_at(path[:-1], parent))
        hint = nearest(path[-1], valid) or f"; valid ones: {', '.join(valid)}"
        return [Problem(path, f"unknown key{hint}")]
    if details["type"] == "union_tag_not_found":
        return [Problem((*path, "name"), in_words(details))]
    if details["type"] == "union_tag_invalid":
        names, name = context["expected_tags"], context["tag"]
        hint = nearest(name, re.findall("'([^']+)'", names))
        return [Problem((*path, "name"), f"expected {names}, found {quoted(name)}{hint}")]
    return [Problem(path, in_words(details))]


def _locate(details: ErrorDetails, data: object) -> tuple[Path, Mapping[str, Any]]:
    """The user's path for pydantic's location, in which tags of unions stand as well, and the object that holds it."""
    path: Path = ()
    parent: Mapping[str, Any] = {}
    for part in details["loc"]:
        if isinstance(data, Mapping) and part in data:
            path, parent, data = (*path, part), data, data[part]
        elif isinstance(data, list | tuple) and isinstance(part, int):
            path, data = (*path, part), data[part]
    return (*path, details["loc"][-1]) if details["type"] == "missing" else path, parent
