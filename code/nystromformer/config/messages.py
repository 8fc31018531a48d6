"""pydantic's errors in plain words, with the path that a user sees in the file.

The JSON schema serves as the map: walking it along an error's location tells pydantic's union tags from the user's
keys, and gives what was expected, the valid keys and the descriptions.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]

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
    """`value` as JSON on one printable line, shortened where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        # Not from JSON that was read here: from a file that somebody made up.
        text = f"{type(value).__name__} that cannot be shown"
    if len(text) > _LONGEST_VALUE:
        text = f"{text[: _LONGEST_VALUE - 8]} ... {text[-3:]}"
    # Lone surrogates cannot be printed, other control characters would act on the terminal.
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def dotted(path: Path) -> str:
    """``("model", "attn_type", 3, "name")`` as ``model.attn_type[3].name``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif len(part) <= _LONGEST_VALUE and re.fullmatch(r"[\w$-]+", part):
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def describe_errors(error: ValidationError, schema: Schema) -> list[Problem]:
    """Every mistake that `error` found against the model that `schema` belongs to."""
    return first_errors(error, schema, None)[0]


def first_errors(error: ValidationError, schema: Schema, most: int | None) -> tuple[list[Problem], int]:
    """The first `most` mistakes, and how many there are."""
    errors = error.errors(include_url=False)
    problems = (problem for details in errors for problem in _problems(details, schema))
    causes = (details.get("ctx", {}).get("error") for details in errors)
    count = sum(len(cause.problems) if isinstance(cause, ImpossibleError) else 1 for cause in causes)
    return list(islice(problems, most)), count


def _problems(details: ErrorDetails, schema: Schema) -> list[Problem]:
    path, parent, node = _locate(details["loc"], schema)
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, ImpossibleError):
        return [Problem(path + problem.path, problem.text) for problem in cause.problems]
    if details["type"] == "missing":
        return [Problem(path, f"missing; expected {_words(node, schema)} ({_sentence(node)})")]
    if details["type"] in ("extra_forbidden", "invalid_key"):
        return [_unknown_key(path, parent, schema)]
    if details["type"] == "string_unicode" and "properties" in node:
        # A key with a lone surrogate; pydantic stops there, with the location of the object.
        return [_unknown_key((*path, str(details["input"])), node, schema)]
    if "discriminator" in node and isinstance(details["input"], Mapping):
        return [_wrong_name(path, node, details["input"])]
    place = "" if path else "at the top level: "
    value = f"{quoted(details['input'])}{_near(node, details)}"
    return [Problem(path, f"{place}expected {_words(node, schema)}, found {value}")]


def _locate(loc: Path, root: Schema) -> tuple[Path, Schema, Schema]:
    """The user's path for pydantic's location, the schema of the object that holds it, and its own schema."""
    path: Path = ()
    parent: Schema = {}
    node = root
    for part in loc:
        node = _resolve(node, root)
        if "discriminator" in node:
            node = {"$ref": node["discriminator"]["mapping"][part]}
        elif "oneOf" in node:
            node = next(option for option in node["oneOf"] if _tag(_resolve(option, root)) == part)
        else:
            parent, path = node, (*path, part)
            node = node.get("items", {}) if isinstance(part, int) else node.get("properties", {}).get(part, {})
    return path, parent, _resolve(node, root)


def _resolve(node: Schema, root: Schema) -> Schema:
    """`node` with its reference followed and without the null of an optional value; its own description wins."""
    if "$ref" in node:
        node = {**root["$defs"][node["$ref"].rsplit("/", 1)[-1]], **{k: v for k, v in node.items() if k != "$ref"}}
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    if len(options) == 1:
        node = {"nullable": True, **options[0], **{k: v for k, v in node.items() if k != "anyOf"}}
    return node


def _tag(option: Schema) -> str:
    """The tag under which network.py offers this form of ``attn_type``, or an attention this one of a parameter."""
    if "discriminator" in option:
        return "object"
    tags = {"array": "list", "integer": "number", "object": "alternating"}
    return tags.get(option.get("type", ""), "name")


def _words(node: Schema, root: Schema) -> str:
    """What a schema asks for, as the end of a sentence that begins with "expected"."""
    node = _resolve(node, root)
    if "oneOf" in node and "discriminator" not in node:
        return _either([_words(option, root) for option in node["oneOf"]])
    null = " or null" if node.get("nullable") else ""
    if "const" in node or "enum" in node:
        return _either(list(map(quoted, node.get("enum", [node.get("const")])))) + null
    return _type_words(node, root) + null


def _either(choices: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))


def _type_words(node: Schema, root: Schema) -> str:
    if "discriminator" in node:
        return 'an object {"name": ..., its parameters}'
    if "every" in node.get("properties", {}):
        return 'an object {"every": ..., "global": ..., "local": ...}'
    if node["type"] == "array":
        once = ", without duplicates" if node.get("uniqueItems") else ""
        has = f", including {quoted(node['contains']['const'])}" if "contains" in node else ""
        items = "these" if "oneOf" in node["items"] else _words(node["items"], root).replace("an integer", "integers")
        most = f"at most {node['maxItems']:,} " if "maxItems" in node else ""
        return f"a list of {most}{items}{once}{has}"
    if node["type"] in ("integer", "number"):
        return _number_words(node)
    words = {"boolean": "true or false", "object": "an object {...}", "string": "a string in double quotes"}
    return words[node["type"]] + (", not empty" if node.get("minLength") else "")


def _number_words(node: Schema) -> str:
    parity = "odd" if "not" in node else "even" if node.get("multipleOf") == 2 else ""
    noun = "a number" if node["type"] == "number" else f"an {parity} integer" if parity else "an integer"
    if "minimum" in node and "maximum" in node:
        return f"{noun} from {_shown(node['minimum'])} to {_shown(node['maximum'])}"
    bounds = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "of at most",
        "exclusiveMaximum": "below",
    }
    return f"{noun} {' and '.join(f'{words} {node[key]}' for key, words in bounds.items() if key in node)}".strip()


def _shown(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _sentence(node: Schema) -> str:
    text = str(node["description"]).split("\n")[0].rstrip(".")
    return text[0].lower() + text[1:] if text[1:2].islower() else text


def _near(node: Schema, details: ErrorDetails) -> str:
    """A question that names the choice nearest to what was found, where there are choices."""
    options = [node, *node.get("oneOf", ())]
    choices = [choice for option in options for choice in option.get("enum", ()) if isinstance(choice, str)]
    value = details["input"]
    nearest = _nearest(value, choices) if isinstance(value, str) else []
    return f"; did you mean {quoted(nearest[0])}?" if nearest else ""


def _nearest(text: str, choices: Sequence[str]) -> list[str]:
    """The choice that was meant, if any; no time goes into what is far too long to be one."""
    return get_close_matches(text.lower(), choices, n=1) if len(text) <= _LONGEST_VALUE else []


def _unknown_key(path: Path, parent: Schema, root: Schema) -> Problem:
    key = str(path[-1])
    valid = list(parent["properties"])
    nearest = _nearest(key, valid)
    home = _home_of(key, root) if len(path) <= 2 else None
    if reason := parent.get("x-refused", {}).get(key):
        text = f"refused: {reason}"
    elif home:
        text = f"unknown key here; it belongs {home}"
    elif nearest:
        text = f"unknown key; did you mean {nearest[0]}?"
    else:
        text = f"unknown key; valid ones: {', '.join(valid)}"
    return Problem(path, text)


def _home_of(key: str, root: Schema) -> str | None:
    """Where `key` would be valid: people move keys between sections."""
    if key in root["properties"]:
        return "at the top level"
    for section, node in root["properties"].items():
        if key in _resolve(node, root).get("properties", {}):
            return f"in {section}"
    return None


def _wrong_name(path: Path, node: Schema, attention: Mapping[str, object]) -> Problem:
    names = list(node["discriminator"]["mapping"])
    expected = f"expected {_either(list(map(quoted, names)))}"
    if "name" not in attention:
        return Problem((*path, "name"), f"missing; {expected}")
    name = attention["name"]
    nearest = _nearest(name, names) if isinstance(name, str) else []
    hint = f"; did you mean {quoted(nearest[0])}?" if nearest else ""
    return Problem((*path, "name"), f"{expected}, found {quoted(name)}{hint}")
