"""JSON text, and what flags say in the place of a config.json: single keys, and attentions with their parameters."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .messages import Duplicate, Path, Problem, dotted, quoted

_PATH = re.compile(r"[\w$-]+(\.[\w$-]+|\[\d+\])*")
_PART = re.compile(r"[\w$-]+|\[\d+\]")
_ATTENTION = re.compile(r"(\w+)((?:,\w+=.*)+)")


def parse_json(text: str) -> Any:
    """The data of a JSON text, with a `Duplicate` for the values of a key that an object has more than once.

    NaN and Infinity are let through to the checks of the values, which refuse them with the path of their key.

    Raises:
        ValueError: the text is not JSON; says where.
    """
    return json.loads(text, object_pairs_hook=_object)


def parse_value(text: str, *, is_attention: bool = False) -> Any:
    """A value as flags give it: JSON, an attention's `NAME,KEY=VALUE,…`, of which it makes an object, or a string."""
    try:
        return parse_json(text)
    except ValueError:
        match = _ATTENTION.fullmatch(text) if is_attention else None
    if match is None:
        return text
    pairs = (each.split("=", 1) for each in re.split(r",(?=\w+=)", match[2])[1:])
    return _object([("name", match[1]), *((key, parse_value(value)) for key, value in pairs)])


def apply_overrides(data: Any, overrides: Sequence[str]) -> list[Problem]:
    """Writes each "section.key=value" into `data`, in place.

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
        path, value = split
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
    return {dotted(place): leaf for path, value in split for place, leaf in _leaves(path, value)}


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return {key: found[0] if len(found) == 1 else Duplicate(found) for key, found in values.items()}


def _leaves(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves((*path, key), item)


def _split(override: str) -> tuple[Path, Any] | None:
    """The path and the value; None of another form."""
    key, equals, text = override.partition("=")
    if not equals or not _PATH.fullmatch(key.strip()):
        return None
    path = tuple(int(part[1:-1]) if part.startswith("[") else part for part in _PART.findall(key))
    return path, parse_value(text, is_attention="attn_type" in path)


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
