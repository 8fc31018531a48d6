"""JSON text, and what flags say in the place of a config.json: single keys, and attentions with their parameters."""

import json
import re
from collections.abc import Sequence
from typing import Any

from .messages import Duplicate, Path, Problem, dotted, quoted

_PATH = re.compile(r"[\w$-]+(\.[\w$-]+)*")
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
    """Writes each "section.key=value" into `data`, in place, with sections that it lacks.

    Returns a problem for each override that has no place in the data. Whether the key exists and takes the value
    is for the checks of the whole.
    """
    problems: list[Problem] = []
    seen: set[Path] = set()
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not _PATH.fullmatch(key.strip()):
            expected = "section.key=value, such as pretraining_setting.seed=1"
            problems.append(Problem((), f"--set {quoted(override)}: expected {expected}"))
            continue
        path: Path = tuple(key.strip().split("."))
        if path in seen:
            problems.append(Problem(path, "overridden twice; keep one"))
        seen.add(path)
        node = data
        for depth, part in enumerate(path[:-1], start=1):
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                is_now = f"cannot be overridden: {dotted(path[:depth])} is {quoted(node)}"
                problems.append(Problem(path, is_now))
                break
        else:
            node[path[-1]] = parse_value(text, is_attention="attn_type" in path)
    return problems


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, list[Any]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return {key: found[0] if len(found) == 1 else Duplicate(found) for key, found in values.items()}
