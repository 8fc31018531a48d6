"""Nyström attention, the paper's."""

from typing import Annotated, Literal

from pydantic import Field

from ..messages import Impossible, quoted
from ..ranges import MOST_ITERATIONS, MOST_PINV_ITERATIONS, Size
from .base import AttentionConfig

DEFAULT_LLOYD_ITERATIONS = 3
_OF_KERNELS = ("ignore_mask", "segments", "pinv_start", "landmarks")
"""Parameters of which the fused kernels accept the default alone."""


class NystromConfig(AttentionConfig):
    """Nyström attention, eq. 13-17 of the paper."""

    exceptional = (
        {"segments": "padded"},
        {"segments": "padded_unmasked"},
        {"pinv_start": "batch"},
        {"segments": "padded", "pinv_start": "batch", "ignore_mask": True},
    )

    name: Literal["nystrom"] = "nystrom"
    num_landmarks: Size = 64
    """Number of landmarks of each head, M in the paper. A row with at most this many tokens, without padding, gets
    exact attention."""
    pinv_iterations: int = Field(default=6, ge=1, le=MOST_PINV_ITERATIONS)
    """Iterations of eq. 14 that approximate the pseudo-inverse. More than 12 are computed in float64."""
    segments: Literal["valid", "padded", "padded_unmasked"] = "valid"
    """Which tokens a landmark is the mean of. valid: near-equal segments of each row's own tokens; padded: the authors'
    fixed segments over the padded length, with masked tokens as zeros; padded_unmasked: the fixed segments of
    transformers' module, masked tokens included."""
    landmarks: Literal["segment_means", "strided", "kmeans"] = "segment_means"
    """How landmarks are computed. segment_means: the means of the segments (eq. 16); strided: the first token of each
    segment; kmeans: cluster centres of the tokens, by Lloyd iterations."""
    kmeans_iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] | None = None
    """Lloyd iterations if landmarks is kmeans; null: 3."""
    pinv_start: Literal["matrix", "batch"] = "matrix"
    """Divisor of the start value of eq. 14. matrix: each matrix's own norms, so that rows do not depend on one another;
    batch: the largest norms in the batch, as in the authors' code."""
    implementation: Literal["auto", "torch", "triton"] = "auto"
    """Implementation. torch: tensor operations; triton: fused GPU kernels, or an error if they do not support the case;
    auto: the kernels on CUDA devices that support them, else torch."""

    def impossible(self) -> Impossible:
        if self.ignore_mask and self.segments != "padded":
            text = f'expected "padded" with ignore_mask = true, found "{self.segments}": if padding counts'
            yield ("segments",), f"{text} like any token, segments cannot depend on the mask"
        if self.landmarks != "segment_means" and self.segments != "valid":
            text = f'expected "segment_means" with segments = "{self.segments}", found "{self.landmarks}"'
            yield ("landmarks",), f"{text}: the others are computed from each row's valid tokens"
        if self.landmarks != "kmeans" and self.kmeans_iterations is not None:
            text = f'expected no iterations with landmarks = "{self.landmarks}", found {self.kmeans_iterations}'
            yield ("kmeans_iterations",), f'{text}: only "kmeans" has them'
        defaults = {key: field.default for key, field in type(self).model_fields.items()}
        for key in _OF_KERNELS if self.implementation == "triton" else ():
            if (value := getattr(self, key)) != defaults[key]:
                text = f'expected "torch" or "auto" with {key} = {quoted(value)}, found "triton": the kernels accept'
                yield ("implementation",), f"{text} only {quoted(defaults[key])}"

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
            text = f"expected fewer landmarks than max_seq_len = {max_seq_len}, found {self.num_landmarks}: every input"
            text += ' would be short enough for exact attention; lower it, or use "softmax"'
            problems.append(("num_landmarks", text))
        if reason := self.why_not_length(max_seq_len):
            problems.append(("num_landmarks", f"expected a divisor of max_seq_len = {max_seq_len}: {reason}"))
        return problems

    @property
    def lloyd_iterations(self) -> int:
        """Lloyd's iterations that find the landmarks."""
        return (self.kmeans_iterations or DEFAULT_LLOYD_ITERATIONS) if self.landmarks == "kmeans" else 0

    @property
    def longest_exact(self) -> float:
        return self.num_landmarks if self.segments == "valid" else 0
