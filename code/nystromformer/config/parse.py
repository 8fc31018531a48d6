"""JSON text to plain data, with the two things that json.loads leaves out: duplicate keys, and errors for people."""

import json
from collections.abc import Iterator
from typing import Any

from .messages import Path, Problem, quoted

# Far below Python's own limit, which later steps would run into at a depth that json.loads still takes.
_DEEPEST = 100
_MOST_VALUES = 5
"""Of a key that stands there several times."""


class _Object(dict[str, Any]):
    """A JSON object that remembers its pairs; the dict alone has lost the first of two equal keys."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def parse_json(text: str) -> tuple[Any, list[Problem]]:
    """The data of a JSON text (the last one of duplicate keys), and a problem for each duplicate key.

    Raises ValueError, saying where and what, if the text is not JSON. NaN and Infinity are let through to the
    checks of the values, which refuse them with the path of their key.
    """
    try:
        data = json.loads(text, object_pairs_hook=_Object)
        return data, list(_duplicates(data, ()))
    except json.JSONDecodeError as error:
        raise ValueError(_not_json(text, error)) from None
    except RecursionError:
        raise ValueError("JSON that cannot be read: nested too deeply") from None
    except ValueError:
        # Python refuses to convert integers of more than 4300 digits.
        raise ValueError("JSON that cannot be read: a number has thousands of digits") from None


def _duplicates(node: object, path: Path) -> Iterator[Problem]:
    if len(path) > _DEEPEST:
        raise RecursionError
    if isinstance(node, list):
        for index, item in enumerate(node):
            yield from _duplicates(item, (*path, index))
    if not isinstance(node, _Object):
        return
    values: dict[str, list[Any]] = {}
    for key, value in node.pairs:
        values.setdefault(key, []).append(value)
        yield from _duplicates(value, (*path, key))
    for key, given in values.items():
        if len(given) > 1:
            shown = [*map(quoted, given[:_MOST_VALUES]), *(["…"] if len(given) > _MOST_VALUES else [])]
            yield Problem((*path, key), f"given {len(given)} times ({', '.join(shown)}); keep one")


def _not_json(text: str, error: json.JSONDecodeError) -> str:
    if not text.strip():
        return "not JSON: empty"
    rest = text[error.pos :].split("\n", 1)[0].strip()
    there = f"found {rest[:40]!a}" if rest else "the line or the text ends there"
    return f"not JSON: line {error.lineno}, column {error.colno}: {_complaint(text, error)}, {there}"


def _complaint(text: str, error: json.JSONDecodeError) -> str:
    """What is wrong, by name for the habits that people bring from Python and JavaScript."""
    before, rest = text[: error.pos].rstrip(), text[error.pos :].lstrip()
    # Python 3.13 points at a trailing comma itself, earlier versions behind it.
    after_comma = rest[1:].lstrip() if rest.startswith(",") else rest if before.endswith(",") else ""
    if after_comma.startswith(("}", "]")):
        return "no comma is allowed before a closing bracket"
    habits = {
        ("//", "/*", "#"): "JSON has no comments",
        ("'",): "strings and keys must be in double quotes",
        ("True", "False", "None"): "write true, false and null",
    }
    for starts, complaint in habits.items():
        if rest.startswith(starts):
            return complaint
    return error.msg[0].lower() + error.msg[1:]
