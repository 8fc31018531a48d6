"""What all attentions may be told, and what they tell those who plan with them."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from ..messages import StrictModel
from ..ranges import MOST


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("expected an odd number")
    return value


_Odd = Field(json_schema_extra={"not": {"multipleOf": 2}})
OddNumber = Annotated[int, Field(ge=1, le=MOST), _Odd, AfterValidator(_odd)]
ConvKernelSize = Annotated[int, Field(ge=1, le=999_999), _Odd, AfterValidator(_odd)]


class AttentionConfig(StrictModel):
    """What every attention has in common. In `methods.py`, `XConfig` with the name "x" is the config of `XAttention` in
    `nystromformer/attention/x.py`, which `attn_type` may name.
    """

    exceptional: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Settings with which it keeps less of the contract than with its defaults, for the documents' table."""
    compares_queries_and_keys: ClassVar[bool] = True
    """Whether scores come of queries and keys, the two that rotary positions turn."""
    learns_weights: ClassVar[bool] = False
    """Whether it has weights beside the projections of queries, keys and values, and the convolution."""

    name: str
    """Which attention this is."""
    conv_kernel_size: ConvKernelSize | None = None
    """Taps of the depthwise convolution over the values, an odd number; its result is added to the attention's output.
    null: no convolution."""
    ignore_mask: bool = False
    """Treat padding like any other token: it is attended to, enters landmarks and convolution, and gets an output, as
    in the authors' classification code."""

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        """What cannot be in a model whose longest input has so many tokens: a parameter each, and what is wrong."""
        return []

    @property
    def length_step(self) -> int:
        """What the number of an input's tokens, padding included, must be a multiple of."""
        return 1

    def why_not_length(self, length: int) -> str | None:
        """Why the attention takes no input of so many tokens, padding included; None where it does."""
        return None

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
