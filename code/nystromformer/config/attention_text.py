"""An attention as a flag names it: `NAME,KEY=VALUE,…`, or the object that a config.json has for it."""

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .attention import AttentionConfig, attention_config
from .overrides import parse_value

FLAG = "--attention"


def parse_attention(text: str) -> tuple[AttentionConfig, Mapping[str, Any]]:
    """The attention, and what the text tells of its parameters.

    Raises:
        UserError: another form, an unknown attention, or parameters that it does not take.
    """
    value = parse_value(text, is_attention=True)
    parameters = value if isinstance(value, dict) else {"name": text}
    try:
        if "name" not in parameters or "," in str(parameters["name"]):
            raise ValueError('expected NAME,KEY=VALUE,…, or {"name": …} with an attention and its parameters')
        name = parameters.pop("name")
        return attention_config(name, **parameters), parameters
    except ValueError as error:
        raise UserError(f"{FLAG} {text[:200]}: {error}") from None
