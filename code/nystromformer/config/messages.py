"""Objects of a config.json as pydantic models, and what pydantic finds wrong with them, a line for each mistake."""

import json
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

Path = tuple[str | int, ...]
Impossible = Iterable[tuple[Path, str]]
"""Values that are each valid and cannot be combined: the path of each, and what is wrong with it."""
_STRICT = ConfigDict(
    strict=True,
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    serialize_by_alias=True,
)
_IMPOSSIBLE = "impossible"
_LONGEST_VALUE = 80
OF_YOUR_OWN = "; one of your own becomes known by --attention FILE.py:CLASS"
_QUOTED = re.compile("'([^']+)'")


class Problem(NamedTuple):
    """One mistake: where it is, and in words what is wrong."""

    path: Path
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


class Duplicate:
    """The values of a key that an object has more than once, in the value's place: no type accepts it."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"given {len(self.values)} times ({', '.join(map(quoted, self.values))}); keep one"


class StrictModel(BaseModel):
    """An object of a config.json: without unknown keys, and with each value of its own type."""

    model_config = _STRICT

    @model_validator(mode="after")
    def _possible(self) -> Self:
        errors = [
            InitErrorDetails(type=PydanticCustomError(_IMPOSSIBLE, "{text}", {"text": text}), loc=path, input=None)
            for path, text in dict.fromkeys(self.impossible())
        ]
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    def impossible(self) -> Impossible:
        """Values that cannot be combined."""
        return ()


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


def describe_errors(
    error: ValidationError, data: object, kind: type[BaseModel], inner: Mapping[str, type[BaseModel]] | None = None
) -> list[Problem]:
    """Every mistake that was found in the data.

    Args:
        kind: the model of the data.
        inner: the models of the objects in it, by their keys, or by the tag that tells a union's apart.
    """
    return [_problem(details, data, kind, inner or {}) for details in error.errors(include_url=False)]


def in_words(details: ErrorDetails) -> str:
    """pydantic's own message as a part of ours, with what was found."""
    if details["type"] == "missing":
        return "missing"
    text = details["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if details["type"] == "model_type":
        text = "expected an object {...}"  # pydantic names our classes
    hint = nearest(details["input"], _QUOTED.findall(text)) if isinstance(details["input"], str) else ""
    return f"{text[0].lower()}{text[1:]}, found {quoted(details['input'])}{hint}"


def _problem(details: ErrorDetails, data: Any, kind: type[BaseModel], inner: Mapping[str, type[BaseModel]]) -> Problem:
    error, where, context = details["type"], details["loc"], details.get("ctx", {})
    # pydantic's path has the tags of unions as well, which are no keys of the data.
    path: Path = ()
    for part in where:
        is_item = isinstance(data, list | tuple) and isinstance(part, int)
        if is_item or (isinstance(data, Mapping) and part in data):
            path, data = (*path, part), data[part]
    if error in ("missing", _IMPOSSIBLE) and path[-1:] != where[-1:]:
        path = (*path, where[-1])
    elif error.startswith("union_tag"):
        path, data = (*path, "name"), data.get("name") if isinstance(data, Mapping) else data
    if isinstance(data, Duplicate):
        return Problem(path, repr(data))
    if error == _IMPOSSIBLE:
        return Problem(path, details["msg"])
    if error == "extra_forbidden":
        fields = (inner[str(where[-2])] if len(where) > 1 else kind).model_fields
        valid = [field.alias or name for name, field in fields.items()]
        hint = nearest(path[-1], valid) or f"; valid ones: {', '.join(valid)}"
        return Problem(path, f"unknown key{hint}")
    if error == "union_tag_not_found":
        return Problem(path, "missing")
    if error == "union_tag_invalid":
        names, name = context["expected_tags"], context["tag"]
        hint = nearest(name, _QUOTED.findall(names)) or OF_YOUR_OWN  # the attentions are the one union with names
        return Problem(path, f"expected {names}, found {quoted(name)}{hint}")
    return Problem(path, in_words(details))
