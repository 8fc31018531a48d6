"""What all attentions may be told, and what they tell those who plan with them."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from ...wording import number_of
from ..messages import ImpossibleError, Problem


def _name_is_required(schema: dict[str, Any]) -> None:
    # In Python the class says which attention it is; in JSON only the name does.
    schema["required"] = ["name", *schema.get("required", [])]


STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True)


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("expected an odd number")
    return value


ConvKernelSize = Annotated[
    int, Field(ge=1, le=999_999, json_schema_extra={"not": {"multipleOf": 2}}), AfterValidator(odd)
]


class AttentionConfig(BaseModel):
    """What every attention has in common.

    A subclass in a module of this package is an attention that `attn_type` may name: `XConfig` in `x.py` is the config
    of `XAttention` in `nystromformer/attention/x.py`.
    """

    model_config = ConfigDict(**STRICT, json_schema_extra=_name_is_required)

    exceptional: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Settings with which it keeps less of the contract than with its defaults, for the documents' table."""

    name: str = Field(description="Which attention this is.")
    conv_kernel_size: ConvKernelSize | None = Field(
        default=None,
        description="Taps of the depthwise convolution over the values, an odd number; its result is added to the "
        "attention's output. null: no convolution.",
    )
    ignore_mask: bool = Field(
        default=False,
        description="Treat padding like any other token: it is attended to, enters landmarks and convolution, and "
        "gets an output, as in the authors' classification code.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if problems := self.impossible_together():
            raise ImpossibleError(Problem((key,), text) for key, text in problems)
        return self

    def impossible_together(self) -> list[tuple[str, str]]:
        """Parameters that cannot stand beside others as they are, and what is wrong with each."""
        return []

    @property
    def length_step(self) -> int:
        """What the number of an input's tokens, padding included, must be a multiple of."""
        return 1

    def why_not_length(self, length: int) -> str | None:
        """Why the attention takes no input of so many tokens, padding included; None where it does."""
        return None

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        """What cannot be in a model whose longest input has so many tokens: a parameter each, and what is wrong."""
        return []

    def impossible_with(self, num_heads: int) -> list[tuple[str, str]]:
        """What cannot be in a model with so many heads: a parameter each, and what is wrong."""
        return []

    @property
    def num_projections(self) -> int:
        """How many of queries, keys and values the encoder's layer projects for it."""
        return 3

    @property
    def compares_queries_and_keys(self) -> bool:
        """Whether scores come of queries and keys, the two that rotary positions turn."""
        return True

    @property
    def is_local(self) -> bool:
        """Whether a token attends to those near it alone: such layers take `rope_theta_local`."""
        return False

    @property
    def longest_exact(self) -> float:
        """Tokens, without padding, of the longest row that gets exact softmax attention."""
        return 0

    @property
    def most_global(self) -> int | None:
        """Tokens of a row that may be global, those that a task marks among them; None where marks have no effect."""
        return None

    @property
    def learns_weights(self) -> bool:
        """Whether it has weights beside the projections of queries, keys and values, and the convolution."""
        return False

    @property
    def is_of_all_layers(self) -> bool:
        """Whether all layers share these weights."""
        return False


def beyond_length(values: Mapping[str, int], max_seq_len: int) -> list[tuple[str, str]]:
    """Of parameters that count tokens those that are more than the longest input has, and what is wrong with each."""
    expected = f"expected at most max_seq_len = {max_seq_len}, found"
    return [(key, f"{expected} {value}") for key, value in values.items() if value > max_seq_len]


def beyond_blocks(
    config: AttentionConfig,
    block_size: int,
    max_seq_len: int,
    most: Callable[[int], Mapping[str, int]],
    beside: str = "",
) -> list[tuple[str, str]]:
    """The same of a config's `block_size`, or where that fits of its parameters that count blocks.

    Args:
        most: from the number of blocks of the longest input to the limits of the parameters, beside others.
    """
    if problems := beyond_length({"block_size": block_size}, max_seq_len):
        return problems
    blocks = -(-max_seq_len // block_size)
    there = f"as max_seq_len = {max_seq_len} is {number_of(blocks, 'block')}"
    return [
        (key, f"expected at most {limit}{beside}, {there}, found {value}")
        for key, limit in most(blocks).items()
        if (value := getattr(config, key)) > limit
    ]
