"""Overrides of single keys from the command line: ``model.attn_type=softmax``."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from .messages import Path, Problem, dotted, quoted
from .parse import parse_json

# Nothing in a config.json lies deeper than a parameter of a layer's attention.
_PATH = re.compile(r"[\w$-]+(\.[\w$-]+|\[\d{1,9}\]){0,9}")
_PART = re.compile(r"[\w$-]+|\[\d+\]")


def apply_overrides(data: Any, overrides: Sequence[str]) -> list[Problem]:
    """Writes each "section.key=JSON" into `data`, in place; a value that is not JSON is taken as a string.

    Returns a problem for each override that has no place in the data. Whether the key exists and takes the value
    is for the checks of the whole.
    """
    problems: list[Problem] = []
    seen: set[Path] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not _PATH.fullmatch(key):
            expected = "section.key=value, such as pretraining_setting.seed=1"
            problems.append(Problem((), f"--set {quoted(override)}: expected {expected}"))
            continue
        path = _parts(key)
        value, duplicates = _value(text, path)
        problems += duplicates
        if path in seen:
            problems.append(Problem(path, "overridden twice; keep one"))
        seen.add(path)
        problems += _set(data, path, value)
    return problems


def overridden(overrides: Sequence[str]) -> dict[str, Any]:
    """The dotted keys that overrides give a value, and the values; of an object, those of its keys.

    Malformed overrides are left out: `apply_overrides` tells of them.
    """
    values: dict[str, Any] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if equals and _PATH.fullmatch(key.strip()):
            path = _parts(key.strip())
            values |= {dotted(place): value for place, value in _leaves(path, _value(text, path)[0])}
    return values


def _leaves(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves((*path, key), item)


def _parts(key: str) -> Path:
    return tuple(int(part[1:-1]) if part.startswith("[") else part for part in _PART.findall(key))


def _value(text: str, path: Path) -> tuple[Any, list[Problem]]:
    try:
        value, duplicates = parse_json(text)
    except ValueError:
        return text, []
    return value, [Problem(path + problem.path, problem.text) for problem in duplicates]


def _set(data: Any, path: Path, value: object) -> list[Problem]:
    """Writes `value` at `path`, making sections that the file lacks."""
    node = data
    for depth, part in enumerate(path):
        if reason := _no_place(node, part, dotted(path[:depth])):
            return [Problem(path, f"cannot be overridden: {reason}")]
        if depth == len(path) - 1:
            node[part] = value
        elif isinstance(part, str) and part not in node:
            node[part] = {} if isinstance(path[depth + 1], str) else []
        node = node[part]
    return []


def _no_place(node: object, part: str | int, where: str) -> str | None:
    """Why `node`, which stands at `where`, cannot hold `part`."""
    if isinstance(part, str):
        return None if isinstance(node, dict) else f"{where} is {quoted(node)}, not an object"
    if not isinstance(node, list):
        return f"{where} is {quoted(node)}, not a list"
    return None if part < len(node) else f"{where} has {len(node)} items"
