"""An attention as a flag names it: `NAME,KEY=VALUE,…`, or the object that a config.json has for it."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import UserError
from .attention import ATTENTIONS, AttentionConfig, attention_config
from .network import LAYER_DEFAULTS
from .overrides import parse_json, parse_value


def parse_attention(text: str) -> tuple[AttentionConfig, Mapping[str, Any]]:
    """The attention, and what the text tells of its parameters."""
    value = parse_value(text, is_attention=True)
    parameters = value if isinstance(value, dict) else {"name": text}
    try:
        if "name" not in parameters or "," in str(parameters["name"]):
            raise ValueError('expected NAME,KEY=VALUE,…, or {"name": …} with an attention and its parameters')
        name = parameters.pop("name")
        return attention_config(name, **parameters), parameters
    except ValueError as error:
        raise UserError(f"--attention {text[:200]}: {error}") from None


def attention_overrides(
    config_file: Path, text: str, usual: Mapping[str, Mapping[str, Any]] | None = None
) -> list[str]:
    """Overrides of a config.json that give all layers the attention that a flag names.

    What config.json says of the parameters counts where its own attention is the same, which includes the convolution.

    Args:
        usual: parameters of others, by the attention's name, where they are not the defaults.
    """
    attention, parameters = parse_attention(text)
    try:
        section = parse_json(config_file.read_text(encoding="utf-8-sig"))["model"]
    except (OSError, ValueError, TypeError, KeyError):  # which `load_config` explains
        section = {}
    model = section if isinstance(section, dict) else {}
    own = {"name": model.get("attn_type")} if isinstance(model.get("attn_type"), str) else model.get("attn_type")
    flat = {key: model[key] for key in LAYER_DEFAULTS if model.get(key) is not None}
    if isinstance(own, dict) and own.get("name") == attention.name:
        chosen = {key: value for key, value in flat.items() if key in type(attention).model_fields} | own
    else:
        chosen = {"name": attention.name, **(usual or {}).get(attention.name, {})}
    return [f"model.attn_type={json.dumps(chosen | dict(parameters))}", *(f"model.{key}=null" for key in flat)]


def attention_text(layers: Sequence[Mapping[str, Any]]) -> str:
    """Such as `nystrom (num_landmarks=64)`: landmarks, and what differs from the defaults; layers alike together."""
    shown = []
    for text, alike in groupby(map(_layer, layers)):
        count = len(list(alike))
        shown.append(text if count == len(layers) else f"{count} x {text}")
    return ", ".join(shown)


def _layer(layer: Mapping[str, Any]) -> str:
    name = str(layer["name"])
    fields = ATTENTIONS[name].model_fields if name in ATTENTIONS else {}
    known = {key: field.default for key, field in fields.items()}
    options = [
        f"{key}={value}"
        for key, value in sorted(layer.items(), key=lambda item: item[0] != "num_landmarks")
        if key == "num_landmarks" or (key != "name" and (key not in known or value != known[key]))
    ]
    return f"{name} ({', '.join(options)})" if options else name
