"""An attention as a flag names it: `NAME,KEY=VALUE,…`, or the object that a config.json has for it."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .attention import AttentionConfig, attention_config
from .overrides import apply_overrides

FLAG = "--attention"


def parse_attention(text: str) -> tuple[AttentionConfig, Mapping[str, Any]]:
    """The attention, and what the text tells of its parameters.

    Raises:
        UserError: another form, an unknown attention, or parameters that it does not take.
    """
    name, parameters = _parts(text)
    if "name" in parameters:
        raise UserError(f"{FLAG} {text[:200]!r}: expected the attention's name once, at the beginning")
    try:
        return attention_config(name, **parameters), parameters
    except ValueError as error:
        raise UserError(f"{FLAG} {text[:200]}: {error}") from None


def _parts(text: str) -> tuple[str, dict[str, Any]]:
    if not text.startswith("{"):
        name, *settings = text.split(",")
        data: dict[str, Any] = {}
        for setting in settings:
            if any(not problem.path for problem in apply_overrides({}, [setting])):
                raise UserError(f"{FLAG} {text[:200]!r}: expected NAME,KEY=VALUE,…, found {setting!r}")
        if problems := apply_overrides(data, settings):
            raise UserError(f"{FLAG} {text[:200]!r}: {problems[0]}")
        return name, data
    try:
        said = json.loads(text)
        return str(said.pop("name")), said
    except (ValueError, KeyError, RecursionError) as error:
        expected = '{"name": …} with an attention and its parameters, or NAME,KEY=VALUE,…'
        raise UserError(f"{FLAG} {text[:200]!r}: expected {expected}: {error}") from None
