"""The parameters of each attention, in alphabetical order of their names."""

import math
from typing import Annotated, Literal

from pydantic import Field

from ..messages import Impossible
from ..ranges import MOST, MOST_ITERATIONS, MOST_PINV_ITERATIONS, Count, Size
from .base import AttentionConfig, OddNumber


class BigBirdConfig(AttentionConfig):
    """BigBird: blocks of tokens attend to neighbouring blocks, random blocks and global tokens (Zaheer et al. 2020)."""

    name: Literal["bigbird"] = "bigbird"
    block_size: Size = 64
    """Tokens in a block."""
    num_window_blocks: OddNumber = 3
    """Blocks in a block's window, an odd number: itself and the same number on either side."""
    num_random_blocks: Annotated[int, Field(ge=0, le=1000)] = 3
    """Random blocks that each block of each head attends to, drawn once from the run's seed."""
    num_global_blocks: Count = 2
    """First blocks of a row that are global: their tokens attend to all tokens, and all tokens attend to them."""
    global_capacity: Count = 512
    """Largest number of further tokens that a task may mark as global in a row."""

    @property
    def longest_exact(self) -> float:
        blocks = self.num_global_blocks + self.num_window_blocks // 2 + 1 + self.num_random_blocks
        return blocks * self.block_size

    @property
    def num_global_tokens(self) -> int:
        """First tokens of a row that are global."""
        return self.num_global_blocks * self.block_size

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity


class ConvLinformerConfig(AttentionConfig):
    """Linformer with a strided convolution instead of its projections, for any length: softmax attention to learned
    weighted sums of consecutive tokens."""

    learns_weights = True

    name: Literal["conv_linformer"] = "conv_linformer"
    stride: Size = 4
    """Tokens that are combined into one key and value."""


class LinearConfig(AttentionConfig):
    """Linear attention by the kernel elu(x) + 1 (Katharopoulos et al. 2020)."""

    name: Literal["linear"] = "linear"


class LinformerConfig(AttentionConfig):
    """Linformer: keys and values projected along the length, by weights for max_seq_len tokens (Wang et al. 2020)."""

    learns_weights = True

    name: Literal["linformer"] = "linformer"
    projected_length: Size = 256
    """Number of projected keys and values; k in the paper."""
    sharing: Literal["head", "layer", "model"] = "head"
    """Which heads share a projection. head: none; layer: all heads of a layer; model: all heads of all layers."""


class LocalConfig(AttentionConfig):
    """Softmax attention within blocks of tokens and to the neighbouring blocks."""

    name: Literal["local"] = "local"
    block_size: Size = 128
    """Tokens in a block."""
    neighbours: Count = 1
    """Neighbouring blocks on either side that a block also attends to; 0: only its own block, as in the Long Range
    Arena."""

    @property
    def is_local(self) -> bool:
        return True

    @property
    def longest_exact(self) -> float:
        return self.block_size * (self.neighbours + 1)


class LongformerConfig(AttentionConfig):
    """Longformer's attention: softmax over a sliding window and global tokens (Beltagy et al. 2020)."""

    name: Literal["longformer"] = "longformer"
    window: Annotated[int, Field(ge=2, le=MOST, multiple_of=2)] = 512
    """Tokens in the window besides the token itself, half of them on either side; an even number."""
    num_global_tokens: Count = 1
    """First tokens of a row that are global: they attend to all tokens, and all tokens attend to them. Tokens that a
    task marks, such as WikiHop's question and candidates, are global as well."""
    global_capacity: Count = 512
    """Largest number of tokens that a task may mark in a row. On a GPU, memory for this many is reserved if any may be
    marked."""

    @property
    def is_local(self) -> bool:
        return self.num_global_tokens == 0

    @property
    def longest_exact(self) -> float:
        return self.num_global_tokens + 1 + self.window // 2

    @property
    def most_global(self) -> int:
        return self.num_global_tokens + self.global_capacity


class MraConfig(AttentionConfig):
    """MRA-2: softmax over the tokens of chosen blocks, and over the means of all others (Zeng et al. 2022)."""

    name: Literal["mra"] = "mra"
    block_size: Size = 32
    """Tokens in a block."""
    num_blocks: Size = 8
    """Blocks whose tokens a block attends to individually, an average over the blocks of a head."""
    neighbours: Count = 0
    """Neighbouring blocks on either side that are always chosen, like the block itself."""

    def impossible(self) -> Impossible:
        always = 2 * self.neighbours + 1
        if self.num_blocks < always:
            text = f"expected at least {always}, for the blocks that are always chosen, found {self.num_blocks}"
            yield ("num_blocks",), text

    @property
    def longest_exact(self) -> float:
        return self.block_size * self.num_blocks


class NearFarConfig(AttentionConfig):
    """One softmax over nearby tokens, selected tokens, and means of groups of all other tokens."""

    name: Literal["near_far"] = "near_far"
    block_size: Size = 32
    """Tokens in a block."""
    neighbours: Count = 1
    """Neighbouring blocks on either side whose tokens a block attends to individually."""
    num_landmarks: Size = 64
    """Groups of the tokens that are not attended to individually: near-equal segments of each row's own tokens."""
    num_selected: Count = 16
    """Tokens of each row and head that all its tokens attend to individually: those that attract most attention from 32
    means of queries."""
    num_blocks: Count = 0
    """Further blocks that each block attends to individually: those with the highest products of block means. The
    scores of all pairs of blocks cost (length / block_size)²."""

    @property
    def longest_exact(self) -> float:
        return max(self.block_size * (self.neighbours + 1), self.num_landmarks)


_OF_KERNELS = {"ignore_mask": False, "segments": "valid", "pinv_start": "matrix", "landmarks": "segment_means"}
"""Parameters of which the fused kernels accept one value alone."""


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
    landmarks: Literal["segment_means", "strided"] = "segment_means"
    """How landmarks are computed. segment_means: the means of the segments (eq. 16); strided: the first token of each
    segment."""
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
        if self.implementation == "triton" and (reason := self.beyond_kernels):
            yield ("implementation",), f'expected "torch" or "auto", found "triton" with {reason}'

    @property
    def beyond_kernels(self) -> str | None:
        """A parameter that the fused kernels do not support as it is set, in words."""
        for key, accepted in _OF_KERNELS.items():
            if (value := getattr(self, key)) != accepted:
                return f"{key} = {value!r}: the kernels accept only {accepted!r}"
        return None

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
    def longest_exact(self) -> float:
        return self.num_landmarks if self.segments == "valid" else 0


class PerformerConfig(AttentionConfig):
    """Performer attention: positive orthogonal random features, FAVOR+ (Choromanski et al. 2021)."""

    name: Literal["performer"] = "performer"
    num_features: Size = 256
    """Number of random features; their products approximate softmax's exponential."""
    redraw_steps: Size | None = 1000
    """Training steps after which new features are drawn, from the run's seed and the step; null: never."""


class ReformerConfig(AttentionConfig):
    """Reformer attention: softmax within buckets of locality-sensitive hashing, twice as many in each round as a row
    has chunks; queries and keys share one projection (Kitaev et al. 2020)."""

    name: Literal["reformer"] = "reformer"
    num_hashes: Annotated[int, Field(ge=1, le=8)] = 2
    """Rounds of hashing: a token attends to tokens that share its bucket in at least one round."""
    chunk_length: Size = 64
    """Tokens in a chunk: after sorting by bucket, a token attends within its chunk and the one before."""
    across_buckets: bool = False
    """Whether a token attends to all tokens of the two chunks, as in transformers' Reformer, and not only to those of
    its bucket, as in the paper."""
    redraw_steps: Size | None = 1
    """Training steps after which new rotations for hashing are drawn, from the run's seed and the step; null: never."""


class SinkhornConfig(AttentionConfig):
    """Sparse Sinkhorn attention: softmax within a block and to one other block, chosen by a differentiable sorting (Tay
    et al. 2020)."""

    name: Literal["sinkhorn"] = "sinkhorn"
    block_size: Size = 64
    """Tokens in a block. A row with at most this many tokens, without padding, gets exact attention."""
    iterations: int = Field(default=7, ge=1, le=MOST_ITERATIONS)
    """Iterations of Sinkhorn balancing, which makes the sorting approximately a permutation of the blocks."""
    temperature: float = Field(default=0.75, ge=0.001, le=1000)
    """Temperature of the scores of blocks; lower ones come closer to a permutation."""

    @property
    def longest_exact(self) -> float:
        return self.block_size


class SoftmaxConfig(AttentionConfig):
    """Exact softmax attention."""

    exceptional = ({"ignore_mask": True},)

    name: Literal["softmax"] = "softmax"

    @property
    def longest_exact(self) -> float:
        return float("inf")


class SparseConfig(AttentionConfig):
    """Strided attention of Sparse Transformers, in both directions: tokens at most a stride away, and those a multiple
    of the stride away (Child et al. 2019)."""

    name: Literal["sparse"] = "sparse"
    stride: Size = 64
    """Stride, l in the paper. Time is lowest near the square root of the length."""

    @property
    def longest_exact(self) -> float:
        return math.inf if self.stride == 1 else self.stride + 1


class SynthesizerConfig(AttentionConfig):
    """Synthesizer, "dense": scores without keys, from each token by an MLP of two layers, whose first is the query
    projection and whose second is learned for up to max_seq_len tokens (Tay et al. 2021)."""

    compares_queries_and_keys = False
    learns_weights = True

    name: Literal["synthesizer"] = "synthesizer"
