"""An attention as a flag names it: `NAME,KEY=VALUE,…`, or the object that a config.json has for it."""

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .attention import AttentionConfig, attention_config
from .overrides import apply_overrides
from .parse import parse_json

FLAG = "--attention"


def parse_attention(text: str) -> tuple[AttentionConfig, Mapping[str, Any]]:
    """The attention, and what the text tells of its parameters.

    Raises:
        UserError: another form, an unknown attention, or parameters that it does not take.
    """
    try:
        name, parameters = _parts(text)
        if "name" in parameters:
            raise ValueError("expected the attention's name once, at the beginning")
        return attention_config(name, **parameters), parameters
    except (ValueError, KeyError) as error:
        raise UserError(f"{FLAG} {text[:200]}: {error}") from None


def _parts(text: str) -> tuple[str, dict[str, Any]]:
    if text.startswith("{"):
        said, _ = parse_json(text)
        if "name" not in said:
            raise ValueError('expected {"name": …} with an attention and its parameters, or NAME,KEY=VALUE,…')
        return str(said.pop("name")), said
    name, *settings = text.split(",")
    data: dict[str, Any] = {}
    for problem in apply_overrides(data, settings):
        raise ValueError(str(problem) if problem.path else f"expected NAME,KEY=VALUE,…, found {text[:200]!r}")
    return name, data
