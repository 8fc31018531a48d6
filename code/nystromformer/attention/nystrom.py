"""Nyström attention (paper, eq. 13-17): softmax attention approximated through M landmarks in O(N).

Shapes: B batch, H heads, N tokens, M landmarks, D head dim.
"""

import logging
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nystromformer.attention.base import Attention, Holds
from nystromformer.attention.kernels import why_not
from nystromformer.attention.kernels.trial import failure as kernels_failure
from nystromformer.attention.landmarks import (
    Segments,
    fixed_segment_means,
    segment_means,
    strided_landmarks,
    tokens_at,
)
from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.pinv import STABLE_ITERATIONS, iterative_pinv
from nystromformer.attention.scores import default_scale
from nystromformer.attention.tracing import is_exporting, without_autocast
from nystromformer.config.attention.methods import NystromConfig

_FUSED_ON = ("cuda",)
"""Kinds of device for which "auto" takes the kernels."""

logger = logging.getLogger(__name__)


class Factors(NamedTuple):
    """The three factors of eq. 15, whose product is the approximated softmax matrix; float32 or wider."""

    queries_BHNM: Tensor
    """softmax(Q K̃ᵀ/√D)."""
    inverse_BHMM: Tensor
    """Z*, eq. 14."""
    keys_BHMN: Tensor
    """softmax(Q̃ Kᵀ/√D)."""


class _Landmarks(NamedTuple):
    q_BHMD: Tensor
    k_BHMD: Tensor
    segments: Segments | None


_STABLE_IN_16_BITS = 8
"""Iterations whose products err by 2**-16 are as noisy as 12 in float32: each multiplies the noise by 13/4."""


class NystromAttention(Attention):
    """softmax(QK̃ᵀ) · Z* · softmax(Q̃Kᵀ) · V (eq. 17), evaluated right to left; no N x M matrix is stored.

    A row with at most `num_landmarks` valid tokens gets exact softmax attention, whatever else is in its batch.

    - Landmarks are means over near-equal segments of each row's own valid tokens (`segments` "valid"), or over fixed
      segments of the padded length: "padded" is the authors' code, in which masked tokens count as zeros,
      "padded_unmasked" transformers' module, in which they are included; they are no keys and, unlike there, not
      convolved. With `pinv_start` "batch" and `ignore_mask` "padded" is the authors' classification, which passes no
      mask on. `landmarks` "strided" are the first token of each segment instead.
    - `implementation` "torch" is tensor operations, "triton" fused kernels, an error where they cannot compute the case
      (input no longer than M is exact attention, PyTorch's own); "auto" is the kernels on CUDA devices where they can,
      once a small input was right, else tensor operations; a line of the log says which.
    """

    config: NystromConfig

    @property
    def holds(self) -> Holds:
        fixed = self.config.segments != "valid"
        return replace(
            super().holds,
            padding=not (fixed or self.config.ignore_mask),
            masking=self.config.segments != "padded_unmasked" and not self.config.ignore_mask,
            any_length=not fixed,
            export=not fixed,
            batch=self.config.pinv_start == "matrix",
        )

    @property
    def zeroes_masked_query_key(self) -> bool:
        return self.config.segments != "padded_unmasked"

    def by_kernels(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor | None:
        """As of every attention; `implementation` says by what.

        Raises:
            ValueError: `implementation` is "triton" and the kernels cannot compute this.
        """
        config, way = self.config, self.config.implementation
        if way == "torch" or is_exporting() or self._every_row_is_exact(q.shape[2]):
            return None
        if way == "auto" and q.device.type not in _FUSED_ON:
            return None
        weight = None if self.skip is None else self.skip.weight
        taps = 0 if weight is None else weight.shape[2]
        reason = self._why_not_fused(q, taps)
        if way == "triton" and reason is not None:
            raise ValueError(f'implementation="triton" cannot compute this: {reason}. Use "torch" or "auto".')
        if way == "auto":
            failed = None
            if reason is None:
                failed = kernels_failure(
                    str(q.device), config.num_landmarks, self.head_dim, q.dtype, taps, mask is not None
                )
            if not torch.compiler.is_compiling():
                _say_once(reason, failed)
            if reason is not None or failed is not None:
                return None
        # Imported here: without triton everything else works.
        from nystromformer.attention.kernels.ops import nystrom_attention

        rows: tuple[Tensor | None, ...] = (None,) * 6
        if mask is not None:
            rows = (mask.keep_BN, *mask.ranges(config.num_landmarks))
        return nystrom_attention(q, k, v, *rows, weight, config.num_landmarks, config.pinv_iterations)[0]

    def _why_not_fused(self, q: Tensor, taps: int) -> str | None:
        config = self.config
        # In three products of bfloat16 each, if q has 16 bits.
        precision, most = ("float32", STABLE_ITERATIONS) if q.element_size() > 2 else ("bfloat16", _STABLE_IN_16_BITS)
        if config.pinv_iterations > most:
            return f"the kernels iterate in {precision}, of which {most} are stable, not {config.pinv_iterations}"
        return config.beyond_kernels or why_not(q, config.num_landmarks, taps)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        if mask is None and is_exporting():
            # One exported program serves every length: the rows' lengths become data.
            mask = _all_tokens(q)
        if self._every_row_is_exact(q.shape[2]):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.bias(q.dtype))
        landmarks = self._landmarks(q, k, mask)
        key_bias = None if mask is None else mask.bias(q.dtype)
        context_BHMD = F.scaled_dot_product_attention(landmarks.q_BHMD.to(q.dtype), k, v, attn_mask=key_bias)
        with without_autocast(q):
            inverse_BHMM = self._inverse(landmarks)
            values_BHMD = inverse_BHMM @ context_BHMD.to(inverse_BHMM.dtype)
        values_BHMD = values_BHMD.to(q.dtype)
        landmark_bias = None
        short = None if landmarks.segments is None else landmarks.segments.short
        if short is not None:
            # The landmarks of a short row are its tokens: with V's tokens as values the last product is softmax(QKᵀ)V.
            values_BHMD = torch.where(short.rows_B[:, None, None, None], tokens_at(v, short.first_BM), values_BHMD)
            landmark_bias = short.bias_B11M.to(q.dtype)
        return F.scaled_dot_product_attention(q, landmarks.k_BHMD.to(q.dtype), values_BHMD, attn_mask=landmark_bias)

    def factors(self, q: Tensor, k: Tensor) -> Factors:
        """The factors of eq. 15, materialised, for people who want to look at them.

        Args:
            q, k: (B, H, N, D), rows of more than `num_landmarks` tokens that all count.

        Raises:
            ValueError: as `forward`, and for shorter rows, which get exact attention.
        """
        self._check(q, k, q, is_causal=False)
        if q.shape[2] <= self.config.num_landmarks:
            text = f"rows of up to num_landmarks = {self.config.num_landmarks} tokens get exact attention, not factors"
            raise ValueError(f"{text}: expected more, found {q.shape[2]}")
        with without_autocast(q):
            q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
            landmarks = self._landmarks(q, k, None)
            keys_BHMN = self._softmax(landmarks.q_BHMD, k, None)
            return Factors(self._softmax(q, landmarks.k_BHMD, None), self._inverse(landmarks), keys_BHMN)

    def _every_row_is_exact(self, length: int) -> bool:
        if self.config.segments != "valid":
            return length == self.config.num_landmarks
        # By the shape alone, which costs no sync. An exported program has none that it could ask.
        return not is_exporting() and length <= self.config.num_landmarks

    def _landmarks(self, q: Tensor, k: Tensor, mask: AttentionMask | None) -> _Landmarks:
        length, count = q.shape[2], self.config.num_landmarks
        if self.config.segments != "valid":
            if length % count:
                raise ValueError(
                    f'segments="{self.config.segments}" cuts the padded length into num_landmarks = {count} equal '
                    f'segments: expected a multiple of it, found {length} tokens. Pad, or use segments="valid".'
                )
            return _Landmarks(fixed_segment_means(q, count), fixed_segment_means(k, count), None)
        segments = None
        if mask is not None:
            segments = mask.segments(count)
        elif length % count:
            segments = Segments.of_length(q.shape[0], length, count, q.device)
        return _Landmarks(self._of_rows(q, segments, mask), self._of_rows(k, segments, mask), segments)

    def _of_rows(self, x: Tensor, segments: Segments | None, mask: AttentionMask | None) -> Tensor:
        """Landmarks of each row's own valid tokens, (B, H, M, D)."""
        count = self.config.num_landmarks
        if self.config.landmarks == "strided":
            return strided_landmarks(x, None if mask is None else mask.first_of_segments(count), count)
        return fixed_segment_means(x, count) if segments is None else segment_means(x, segments)

    def _inverse(self, landmarks: _Landmarks) -> Tensor:
        """The iterative inverse of softmax(Q̃K̃ᵀ/√D), (B, H, M, M)."""
        short = None if landmarks.segments is None else landmarks.segments.short
        bias = None if short is None else short.bias_B11M
        a_BHMM = self._softmax(landmarks.q_BHMD, landmarks.k_BHMD, bias)
        if short is not None and self.config.pinv_start == "matrix":
            # Their inverse is not used, and need not be one that can be had: a gradient through it might be none.
            identity_MM = torch.eye(self.config.num_landmarks, dtype=a_BHMM.dtype, device=a_BHMM.device)
            a_BHMM = torch.where(short.rows_B[:, None, None, None], identity_MM, a_BHMM)
        return iterative_pinv(a_BHMM, self.config.pinv_iterations, self.config.pinv_start)

    def _softmax(self, q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        scores = (q @ k.mT) * default_scale(self.head_dim)
        return torch.softmax(scores if bias is None else scores + bias.to(scores.dtype), dim=-1)


@cache
def _say_once(reason: str | None, failed: str | None) -> None:
    if failed is not None:
        logger.warning("Nyström attention without fused kernels: they were tried and %s", failed)
    elif reason is not None:
        logger.info("Nyström attention without fused kernels: %s", reason)
    else:
        logger.info("Nyström attention with fused kernels")


def _all_tokens(q_BHND: Tensor) -> AttentionMask:
    return AttentionMask(torch.ones(q_BHND.shape[0], q_BHND.shape[2], dtype=torch.bool, device=q_BHND.device))
