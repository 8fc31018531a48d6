"""JSON text to plain data, with what json.loads leaves out: duplicate keys."""

import json
from collections.abc import Iterator
from typing import Any

from .messages import Path, Problem, quoted


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
    except json.JSONDecodeError as error:
        rest = text[error.pos :].split("\n", 1)[0].strip()
        found = f"found {rest[:40]!a}" if rest else "the line or the text ends there"
        raise ValueError(f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}, {found}") from None
    return data, list(_duplicates(data, ()))


def _duplicates(node: object, path: Path) -> Iterator[Problem]:
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
            yield Problem((*path, key), f"given {len(given)} times ({', '.join(map(quoted, given))}); keep one")
