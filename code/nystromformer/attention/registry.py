"""Attentions by name."""

import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import TypeVar, get_type_hints

from nystromformer.attention.base import Attention
from nystromformer.config.attention import ATTENTIONS, AttentionConfig, attention_config

Own = TypeVar("Own", bound=type[Attention])
_REGISTERED: dict[type[AttentionConfig], type[Attention]] = {}


def register_attention(attention: Own) -> Own:
    """Make an attention of your own known by its config's name: to `create_attention`, to layers and drop-ins, and in
    config.json. Its annotation `config: MyConfig` names the config's class, whose `name` has a default.

    Raises:
        ValueError: no such config, or a name that another attention has.

    >>> @register_attention
    ... class Mine(Attention):
    ...     config: MyConfig
    """
    config = get_type_hints(attention).get("config", AttentionConfig)
    name = config.model_fields["name"].default
    if not isinstance(name, str):
        raise ValueError(f'{attention.__name__}: expected config: MyConfig, whose class has name: Literal["…"] = "…"')
    known = ATTENTIONS.get(name, config)
    if (known.__module__, known.__qualname__) != (config.__module__, config.__qualname__):
        raise ValueError(f"{attention.__name__}: another attention has the name {name}")
    ATTENTIONS[name], _REGISTERED[config] = config, attention
    return attention


def register_from_file(file: Path, name: str) -> str:
    """Register a class of a Python file, which this runs, and return the attention's name.

    Raises:
        ValueError: no such file or class, or one that `register_attention` refuses.
    """
    module = f"own_attention_{file.stem}"
    spec = importlib.util.spec_from_file_location(module, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"{file}: no such file")
    sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[module])
    found = getattr(sys.modules[module], name, None)
    if not (isinstance(found, type) and issubclass(found, Attention)):
        raise ValueError(f"{file} has no class {name} that derives from Attention")
    return str(get_type_hints(register_attention(found))["config"].model_fields["name"].default)


@cache
def attention_class(config: type[AttentionConfig]) -> type[Attention]:
    """The module's class that a config's class configures: a registered one, or `XAttention` in
    `nystromformer/attention/x.py` for `XConfig`, whose name is x.
    """
    if config in _REGISTERED:
        return _REGISTERED[config]
    module = importlib.import_module(f"{__package__}.{config.model_fields['name'].default}")
    found = getattr(module, f"{config.__name__.removesuffix('Config')}Attention")
    assert issubclass(found, Attention)
    return found


def create_attention(
    name: str | AttentionConfig,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int | None = None,
    **parameters: object,
) -> Attention:
    """An attention module by name, or from a validated config.

    Args:
        name: one of the names in `nystromformer.config.attention.ATTENTIONS`, or an AttentionConfig.
        num_heads: H.
        head_dim: D.
        max_length: tokens of the longest input, for methods that learn something for each place (`needs.max_length`);
            others take any length.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: an unknown name (lists the valid ones), unknown or impossible parameters, or no `max_length` where
            the method needs one.

    >>> attention = create_attention("nystrom", num_heads=12, head_dim=64, num_landmarks=64, conv_kernel_size=33)
    """
    config = attention_config(name, **parameters)
    build = attention_class(type(config))
    if not build.needs.max_length:
        return build(config, num_heads, head_dim)
    if max_length is None:
        raise ValueError(
            f"{config.name} learns weights for each position: expected max_length, the number of tokens of the "
            "longest input"
        )
    return build(config, num_heads, head_dim, max_length)  # type: ignore[call-arg]
