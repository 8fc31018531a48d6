"""What each attention may be told: a pydantic model per method, told apart by ``name``.

Every parameter has a default, so that ``"attn_type": "nystrom"`` alone says enough. What the rest of the project lists
of attentions follows from the models of `methods.py`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator

from ...wording import listed
from ..messages import OF_YOUR_OWN, describe_errors, nearest, quoted
from .base import AttentionConfig, ConvKernelSize
from .methods import NystromConfig, SoftmaxConfig

__all__ = [
    "ATTENTIONS",
    "AttentionConfig",
    "AttentionName",
    "AttentionSpec",
    "ConvKernelSize",
    "NystromConfig",
    "SoftmaxConfig",
    "attention_config",
    "what_decides",
]

_METHODS = sorted(AttentionConfig.__subclasses__(), key=lambda method: method.model_fields["name"].default)
ATTENTIONS: dict[str, type[AttentionConfig]] = {method.model_fields["name"].default: method for method in _METHODS}
"""By name, in alphabetical order; then those that `register_attention` adds."""


def _registered(value: Any, of_the_package: Callable[[Any], Any]) -> Any:
    """A name, a config or its keys: of a registered attention, or else of the package."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", value)
    config = ATTENTIONS.get(name) if isinstance(name, str) else None
    if config is None or config in _METHODS:
        return of_the_package(value)
    return value if isinstance(value, str) else config.model_validate(value)


if TYPE_CHECKING:
    AttentionName = str
    AttentionSpec = AttentionConfig
else:
    AttentionName = Annotated[Literal[tuple(ATTENTIONS)], WrapValidator(_registered)]
    AttentionSpec = Annotated[
        SerializeAsAny[
            Annotated[
                Union[tuple(ATTENTIONS.values())],  # noqa: UP007  # of a tuple
                Field(discriminator="name", description="An attention and its parameters."),
            ]
        ],
        WrapValidator(_registered),
    ]


def attention_config(name: str | AttentionConfig, **parameters: object) -> AttentionConfig:
    """The configuration of the attention called `name`, or `name` itself where it is one already.

    Raises ValueError for an unknown name (listing the valid ones), for unknown or impossible parameters (listing each)
    and for parameters beside a configuration.
    """
    if isinstance(name, AttentionConfig):
        if parameters:
            raise ValueError(
                f"the config already contains the parameters: expected no others, found {sorted(parameters)}"
            )
        return name
    if name not in ATTENTIONS:
        hint = nearest(name, ATTENTIONS) or OF_YOUR_OWN
        raise ValueError(f"unknown attention {quoted(name)}; valid names: {', '.join(ATTENTIONS)}{hint}")
    cls = ATTENTIONS[name]
    try:
        return cls(**parameters)
    except ValidationError as error:
        problems = describe_errors(error, parameters, cls)
        raise ValueError(f"attention {quoted(name)} cannot be configured like this:{listed(problems)}") from None


def what_decides(attn_type: Any) -> Any:
    """An ``attn_type`` as plain data, without the keys that say by what a result is computed, not which result."""
    if isinstance(attn_type, list):
        return [what_decides(each) for each in attn_type]
    if isinstance(attn_type, dict):
        return {key: value for key, value in attn_type.items() if key != "implementation"}
    return attn_type
