"""What each attention may be told: a pydantic model per method, told apart by ``name``.

Every parameter has a default, so that ``"attn_type": "nystrom"`` alone says enough.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..wording import listed
from .messages import ImpossibleError, Problem, describe_errors, quoted
from .ranges import MOST, MOST_ITERATIONS


def _name_is_required(schema: dict[str, Any]) -> None:
    # In Python the class says which attention it is; in JSON only the name does.
    schema["required"] = ["name", *schema.get("required", [])]


STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True)


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("expected an odd number")
    return value


NumLandmarks = Annotated[int, Field(ge=1, le=MOST)]
ConvKernelSize = Annotated[
    int, Field(ge=1, le=999_999, json_schema_extra={"not": {"multipleOf": 2}}), AfterValidator(_odd)
]


class AttentionConfig(BaseModel):
    """What every attention has in common."""

    model_config = ConfigDict(**STRICT, json_schema_extra=_name_is_required)

    name: str = Field(description="Which attention this is.")
    conv_kernel_size: ConvKernelSize | None = Field(
        default=None,
        description="Tokens that the depthwise convolution over the values spans, an odd number; what it gives is "
        "added to the output. null for no convolution.",
    )
    ignore_mask: bool = Field(
        default=False,
        description="Whether padding is taken for tokens like any others: it is attended to, enters landmarks and "
        "convolution and gets an output, as in the authors' code for classification.",
    )

    @property
    def length_step(self) -> int:
        """What the number of an input's tokens, padding included, must be a multiple of."""
        return 1

    def accepts_length(self, length: int) -> bool:
        """Whether the attention can take input of this many tokens, padding included."""
        return length % self.length_step == 0


class SoftmaxConfig(AttentionConfig):
    """Exact softmax attention, quadratic in the length."""

    name: Literal["softmax"] = Field(default="softmax", description="Exact softmax attention.")


class NystromConfig(AttentionConfig):
    """Nyström attention (eq. 13-17 of the paper), linear in the length."""

    name: Literal["nystrom"] = Field(default="nystrom", description="Nyström attention, eq. 13-17 of the paper.")
    num_landmarks: NumLandmarks = Field(
        default=64,
        description="Number of landmarks, M in the paper, of each head; a row with at most so many tokens, padding not "
        "counted, gets exact attention.",
    )
    pinv_iterations: int = Field(
        default=6,
        ge=1,
        le=MOST_ITERATIONS,
        description="Iterations of eq. 14 that approximate the pseudo-inverse; more come closer to it, few also act as "
        "a regulariser.",
    )
    segments: Literal["valid", "padded", "padded_unmasked"] = Field(
        default="valid",
        description="What a landmark is the mean of. valid: near-equal segments of each row's own tokens, without its "
        "padding; padded: the authors' fixed segments over the padded length, masked tokens as zeros; "
        "padded_unmasked: the fixed segments of transformers' module, masked tokens included. ignore_mask lets "
        "padding into all the rest, too.",
    )
    pinv_start: Literal["matrix", "batch"] = Field(
        default="matrix",
        description="By what the start value of eq. 14 is divided. matrix: each matrix by its own norms, so that rows "
        "do not depend on one another; batch: all by the largest norms in the batch, as the authors do.",
    )

    implementation: Literal["auto", "torch", "triton"] = Field(
        default="auto",
        description="What computes it. torch: tensor operations; triton: fused GPU kernels, an error where these "
        "cannot; auto: the kernels on CUDA devices where they can, else torch.",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        problems = []
        if self.ignore_mask and self.segments != "padded":
            text = f'expected "padded" beside ignore_mask = true, found {quoted(self.segments)}: where padding counts'
            problems.append(Problem(("segments",), f"{text} like any token, segments cannot go by the mask"))
        if self.ignore_mask and self.implementation == "triton":
            text = 'expected "torch" or "auto" beside ignore_mask = true, found "triton": the kernels take their mask'
            problems.append(Problem(("implementation",), text))
        if problems:
            raise ImpossibleError(problems)
        return self

    @property
    def length_step(self) -> int:
        return 1 if self.segments == "valid" else self.num_landmarks


# Both list the attentions; a test keeps them in step, because neither can be computed from the other for mypy.
AttentionName = Literal["softmax", "nystrom"]
AttentionSpec = Annotated[
    SoftmaxConfig | NystromConfig, Field(discriminator="name", description="An attention and its parameters.")
]

ATTENTIONS: dict[str, type[AttentionConfig]] = {
    cls.model_fields["name"].default: cls for cls in get_args(get_args(AttentionSpec)[0])
}


def attention_config(name: str, **parameters: object) -> AttentionConfig:
    """The configuration of the attention called `name`.

    Raises ValueError for an unknown name (listing the valid ones) and for unknown or impossible parameters
    (listing each).
    """
    if name not in ATTENTIONS:
        raise ValueError(_unknown_name(name))
    cls = ATTENTIONS[name]
    try:
        return cls(**parameters)
    except ValidationError as error:
        problems = describe_errors(error, cls.model_json_schema())
        raise ValueError(f"attention {quoted(name)} cannot be configured like this:{listed(problems)}") from None


def what_decides(attn_type: Any) -> Any:
    """An ``attn_type`` as plain data, without the keys that say by what a result is computed, not which result."""
    if isinstance(attn_type, list):
        return [what_decides(each) for each in attn_type]
    if isinstance(attn_type, dict):
        # Runs from before there was ignore_mask never did: they shall not count as others for it.
        unsaid = {"implementation"} if attn_type.get("ignore_mask") else {"implementation", "ignore_mask"}
        return {key: value for key, value in attn_type.items() if key not in unsaid}
    return attn_type


def _unknown_name(name: str) -> str:
    nearest = get_close_matches(str(name).lower(), ATTENTIONS, n=1)
    hint = f"; did you mean {quoted(nearest[0])}?" if nearest else ""
    return f"unknown attention {quoted(name)}; valid names: {', '.join(ATTENTIONS)}{hint}"
