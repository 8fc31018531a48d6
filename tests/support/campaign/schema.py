"""Whether a document is what config.schema.json allows, told without the project's own check."""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
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
    root = root or rule
    if "$ref" in rule and not fits(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root):
        return False
    either = [*rule.get("anyOf", ()), *rule.get("oneOf", ())]
    if either and not any(fits(value, each, root) for each in either):
        return False
    if "type" in rule and not _TYPES[rule["type"]](value):
        return False
    if "enum" in rule and not any(_same(value, each) for each in rule["enum"]):
        return False
    if "const" in rule and not _same(value, rule["const"]):
        return False
    if "not" in rule and fits(value, rule["not"], root):
        return False
    parts = {"object": _members, "array": _items}
    return all(part(value, rule, root) for name, part in parts.items() if _TYPES[name](value)) and _bounds(value, rule)


def _bounds(value: Any, rule: Mapping[str, Any]) -> bool:
    if isinstance(value, str):
        return len(value) >= rule.get("minLength", 0)
    if not _is_number(value):
        return True
    whole = "multipleOf" not in rule or value % rule["multipleOf"] == 0
    return whole and rule.get("minimum", value) <= value <= rule.get("maximum", value)


def _members(value: Mapping[str, Any], rule: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    known = rule.get("properties", {})
    closed = rule.get("additionalProperties", True) is False
    return (
        all(name in value for name in rule.get("required", ()))
        and not (closed and set(value) - set(known))
        and all(fits(each, known[name], root) for name, each in value.items() if name in known)
    )


def _items(value: list[Any], rule: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    return (
        all(fits(each, rule.get("items", {}), root) for each in value)
        and len(value) <= rule.get("maxItems", len(value))
        and ("contains" not in rule or any(fits(each, rule["contains"], root) for each in value))
        and not (rule.get("uniqueItems") and any(each in value[:place] for place, each in enumerate(value)))
    )


def _is_number(value: Any) -> bool:
    """NaN and infinities are none: JSON has no word for them."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_narrow(value))


def _narrow(value: float) -> float:
    """Integers of any size are finite, though no float has room for them."""
    return 0.0 if isinstance(value, int) else value


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
