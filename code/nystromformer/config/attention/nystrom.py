"""Nyström attention, the paper's."""

from typing import Literal, Self

from pydantic import Field, model_validator

from ..messages import ImpossibleError, Problem, quoted
from ..ranges import MOST_ITERATIONS
from .base import Arithmetic, AttentionConfig, NumLandmarks, products


class NystromConfig(AttentionConfig):
    """Nyström attention (eq. 13-17 of the paper), linear in the length."""

    exceptional = (
        {"segments": "padded"},
        {"segments": "padded_unmasked"},
        {"pinv_start": "batch"},
        {"segments": "padded", "pinv_start": "batch", "ignore_mask": True},
    )

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

    def why_not_length(self, length: int) -> str | None:
        if length % self.length_step == 0:
            return None
        return (
            f'segments="{self.segments}" cuts rows into {self.num_landmarks} equal segments; segments="valid" takes '
            "any length"
        )

    def impossible_at(self, max_seq_len: int) -> list[tuple[str, str]]:
        problems = []
        if self.num_landmarks >= max_seq_len:
            text = (
                f"expected fewer landmarks than max_seq_len = {max_seq_len}, found {self.num_landmarks}: every input "
                'would be short enough for exact attention; lower it, or use "softmax"'
            )
            problems.append(("num_landmarks", text))
        if max_seq_len % self.length_step:
            text = (
                f"expected a divisor of max_seq_len = {max_seq_len}, found {self.num_landmarks}: fixed segments are of "
                'equal length; only segments "valid" take any length'
            )
            problems.append(("num_landmarks", text))
        return problems

    @property
    def longest_exact(self) -> float:
        return self.num_landmarks if self.segments == "valid" else 0

    def arithmetic(self, num_heads: int, head_dim: int, length: int) -> Arithmetic:
        """softmax(Q̃Kᵀ)V and softmax(QK̃ᵀ)W, four products; Q̃K̃ᵀ and Z T; four products an iteration of eq. 14."""
        M = self.num_landmarks
        if length <= M:
            return products(4.0 * length * length * num_heads * head_dim)
        by_token = 4 * 2 * length * M * head_dim
        return products(num_heads * float(by_token + 2 * 2 * M * M * head_dim + self.pinv_iterations * 4 * 2 * M**3))
