"""Whether a document is what config.schema.json allows, told without the project's own check."""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from campaign.commands import ROOT

_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


@cache
def schema_of_configs() -> dict[str, Any]:
    schema = json.loads((ROOT / "code/nystromformer/config/config.schema.json").read_text())
    assert isinstance(schema, dict)
    return schema


def fits(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> bool:
    """Whether a value is what a rule of the schema allows, by the keywords that the schema has."""
    within = partial(fits, root=root or rule)
    return all(_KEYWORDS[name](value, wanted, rule, within) for name, wanted in rule.items() if name in _KEYWORDS)


def _is_number(value: Any) -> bool:
    """NaN and infinities are none: JSON has no word for them; integers may have any size."""
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _defined(value: Any, reference: str, rule: Any, within: Any) -> bool:
    return bool(within(value, within.keywords["root"]["$defs"][reference.rpartition("/")[2]]))


def _members(value: dict[str, Any], properties: Mapping[str, Any], rule: Any, within: Any) -> bool:
    closed = rule.get("additionalProperties") is False and set(value) - set(properties)
    return not closed and all(within(each, properties[name]) for name, each in value.items() if name in properties)


def _of(kind: str, check: Callable[..., Any]) -> Callable[..., Any]:
    """A keyword that says something of one type alone."""
    return lambda value, *rest: not _TYPES[kind](value) or check(value, *rest)


_KEYWORDS: Mapping[str, Callable[..., Any]] = {
    "$ref": _defined,
    "anyOf": lambda value, either, rule, within: any(within(value, each) for each in either),
    "oneOf": lambda value, either, rule, within: any(within(value, each) for each in either),
    "not": lambda value, other, rule, within: not within(value, other),
    "type": lambda value, name, *_: _TYPES[name](value),
    "enum": lambda value, every, *_: any(_same(value, each) for each in every),
    "const": lambda value, other, *_: _same(value, other),
    "minLength": _of("string", lambda value, least, *_: len(value) >= least),
    "multipleOf": _of("number", lambda value, factor, *_: value % factor == 0),
    "minimum": _of("number", lambda value, least, *_: value >= least),
    "maximum": _of("number", lambda value, most, *_: value <= most),
    "required": _of("object", lambda value, names, *_: set(names) <= set(value)),
    "properties": _of("object", _members),
    "items": _of("array", lambda value, item, rule, within: all(within(each, item) for each in value)),
    "maxItems": _of("array", lambda value, most, *_: len(value) <= most),
    "contains": _of("array", lambda value, item, rule, within: any(within(each, item) for each in value)),
    "uniqueItems": _of("array", lambda value, *_: not any(each in value[:place] for place, each in enumerate(value))),
}
