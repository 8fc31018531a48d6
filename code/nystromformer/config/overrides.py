"""Overrides of single keys from the command line: ``model.attn_type=softmax``."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from .messages import Path, Problem, dotted, quoted
from .parse import parse_json

_PATH = re.compile(r"[\w$-]+(\.[\w$-]+|\[\d+\])*")
_PART = re.compile(r"[\w$-]+|\[\d+\]")


def apply_overrides(data: Any, overrides: Sequence[str]) -> list[Problem]:
    """Writes each "section.key=JSON" into `data`, in place; a value that is not JSON is taken as a string.

    Returns a problem for each override that has no place in the data. Whether the key exists and takes the value
    is for the checks of the whole.
    """
    problems: list[Problem] = []
    seen: set[Path] = set()
    for override in overrides:
        if (split := _split(override)) is None:
            expected = "section.key=value, such as pretraining_setting.seed=1"
            problems.append(Problem((), f"--set {quoted(override)}: expected {expected}"))
            continue
        path, value, duplicates = split
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
    split = (each for each in map(_split, overrides) if each is not None)
    return {dotted(place): leaf for path, value, _ in split for place, leaf in _leaves(path, value)}


def _leaves(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves((*path, key), item)


def _split(override: str) -> tuple[Path, Any, list[Problem]] | None:
    """The path, the value, and the duplicate keys in it; None of another form."""
    key, equals, text = override.partition("=")
    if not equals or not _PATH.fullmatch(key.strip()):
        return None
    path = tuple(int(part[1:-1]) if part.startswith("[") else part for part in _PART.findall(key))
    try:
        value, duplicates = parse_json(text)
    except ValueError:
        return path, text, []
    return path, value, [Problem(path + problem.path, problem.text) for problem in duplicates]


def _set(data: Any, path: Path, value: object) -> list[Problem]:
    """Writes `value` at `path`, making sections that the file lacks."""
    node = data
    for depth, part in enumerate(path):
        is_place = isinstance(node, dict) if isinstance(part, str) else isinstance(node, list) and part < len(node)
        if not is_place:
            return [Problem(path, f"cannot be overridden: {dotted(path[:depth])} is {quoted(node)}")]
        if depth == len(path) - 1:
            node[part] = value
        elif isinstance(part, str):
            node.setdefault(part, {} if isinstance(path[depth + 1], str) else [])
        node = node[part]
    return []
