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

from nystromformer.attention.base import Attention, Holds, default_scale
from nystromformer.attention.clustering import lloyd_centres
from nystromformer.attention.kernels import fused_attention, why_not
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
from nystromformer.attention.tracing import is_exporting, without_autocast
from nystromformer.config.attention.nystrom import NystromConfig

_FUSED_ON = ("cuda",)
"""Kinds of device for which "auto" takes the kernels."""

logger = logging.getLogger(__name__)


class Factors(NamedTuple):
    """The three factors of eq. 15, whose product is the approximated softmax matrix; float32 or wider."""

    queries_BHNM: Tensor
    """softmax(Q K̃ᵀ/√D); zero rows at masked positions."""
    inverse_BHMM: Tensor
    """Z*, eq. 14; the identity for rows that get exact attention."""
    keys_BHMN: Tensor
    """softmax(Q̃ Kᵀ/√D); zero columns at masked positions. Row j selects token j where a row gets exact attention."""


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
      mask on.
    - `landmarks` "strided" are the first token of each segment, "kmeans" centres of the head's queries, and of its
      keys, see `lloyd_centres`.
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

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | AttentionMask | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """As every attention; `implementation` says by what.

        Raises:
            ValueError: as every attention, and where `implementation` is "triton" and the kernels cannot compute this.
        """
        if q.ndim != 4 or q.shape[0] == 0 or not self._is_fused(q, mask is not None):
            return super().forward(q, k, v, mask, is_causal)
        self._check(q, k, v, is_causal)
        weight = None if self.skip is None else self.skip.weight
        wrapped = self._applied(mask, q)
        return fused_attention(q, k, v, wrapped, weight, self.config.num_landmarks, self.config.pinv_iterations)

    def _is_fused(self, q: Tensor, has_mask: bool) -> bool:
        if self.config.implementation == "torch" or is_exporting() or self._every_row_is_exact(q.shape[2]):
            return False
        if self.config.implementation == "auto" and q.device.type not in _FUSED_ON:
            return False
        reason = self._why_not_fused(q)
        if self.config.implementation == "triton":
            if reason is not None:
                raise ValueError(f'implementation="triton" cannot compute this: {reason}. Use "torch" or "auto".')
            return True
        failed = None
        if reason is None:
            taps = 0 if self.skip is None else self.skip.weight.shape[2]
            failed = kernels_failure(str(q.device), self.config.num_landmarks, self.head_dim, q.dtype, taps, has_mask)
        if not torch.compiler.is_compiling():
            _say_once(reason, failed)
        return reason is None and failed is None

    def _why_not_fused(self, q: Tensor) -> str | None:
        config = self.config
        for key, has in (("segments", "valid"), ("pinv_start", "matrix"), ("landmarks", "segment_means")):
            if (value := getattr(config, key)) != has:
                return f'the kernels have {key}="{has}" alone, not {value!r}'
        # In three products of bfloat16 each, if q has 16 bits.
        precision, most = ("float32", STABLE_ITERATIONS) if q.element_size() > 2 else ("bfloat16", _STABLE_IN_16_BITS)
        if config.pinv_iterations > most:
            return f"the kernels iterate in {precision}, of which {most} are stable, not {config.pinv_iterations}"
        if config.ignore_mask:
            return "ignore_mask is true, and the kernels take their mask"
        return why_not(q, config.num_landmarks, None if self.skip is None else self.skip.weight.shape[2])

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

    def factors(self, q: Tensor, k: Tensor, mask: Tensor | AttentionMask | None = None) -> Factors:
        """The factors of eq. 15, materialised, for people who want to look at them.

        Args:
            q, k: (B, H, N, D).
            mask: as in `forward`.

        Raises:
            ValueError: as `forward`.
        """
        self._check(q, k, q, is_causal=False)
        mask = self._applied(mask, q) or _all_tokens(q)
        with without_autocast(q):
            q, k = (x if x.dtype == torch.float64 else x.float() for x in (q, k))
            keep_B1N1 = mask.multiplier(q.dtype)
            if self.zeroes_masked_query_key:
                q, k = mask.zeroed(q), mask.zeroed(k)
            if self.config.segments != "valid" and self._every_row_is_exact(q.shape[2]):
                return self._exact_factors(q, k, mask)
            landmarks = self._landmarks(q, k, mask)
            inverse_BHMM = self._inverse(landmarks)
            keys_BHMN = self._softmax(landmarks.q_BHMD, k, mask.bias(q.dtype)) * keep_B1N1.mT
            segments = landmarks.segments
            landmark_bias = None
            if segments is not None and segments.short is not None:
                short = segments.short
                landmark_bias = short.bias_B11M
                short_B111 = short.rows_B[:, None, None, None]
                tokens_N = torch.arange(q.shape[2], device=q.device)
                selection_BMN = (short.first_BM[:, :, None] == tokens_N).to(q.dtype)
                selection_BMN = selection_BMN * (segments.counts_BM > 0)[:, :, None]
                identity_MM = torch.eye(self.config.num_landmarks, dtype=q.dtype, device=q.device)
                keys_BHMN = torch.where(short_B111, selection_BMN[:, None], keys_BHMN)
                inverse_BHMM = torch.where(short_B111, identity_MM, inverse_BHMM)
            queries_BHNM = self._softmax(q, landmarks.k_BHMD, landmark_bias) * keep_B1N1
            return Factors(queries_BHNM, inverse_BHMM, keys_BHMN)

    def _exact_factors(self, q: Tensor, k: Tensor, mask: AttentionMask) -> Factors:
        """Fixed segments of one token each, for which `forward` takes softmax attention: its matrix and identities."""
        keep_B1N1 = mask.multiplier(q.dtype)
        queries_BHNM = self._softmax(q, k, mask.bias(q.dtype)) * keep_B1N1
        identity_MM = torch.eye(self.config.num_landmarks, dtype=q.dtype, device=q.device)
        inverse_BHMM = identity_MM.expand(*q.shape[:2], -1, -1)
        return Factors(queries_BHNM, inverse_BHMM, inverse_BHMM * keep_B1N1.mT)

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
        if self.config.landmarks == "strided":
            firsts_BM = None if mask is None else mask.first_of_segments(self.config.num_landmarks)
            return strided_landmarks(x, firsts_BM, self.config.num_landmarks)
        means = fixed_segment_means(x, self.config.num_landmarks) if segments is None else segment_means(x, segments)
        if self.config.landmarks == "segment_means":
            return means
        with without_autocast(x):
            centres = lloyd_centres(x, means, None if mask is None else mask.keep_BN, self.config.lloyd_iterations)
        short = None if segments is None else segments.short
        # Tokens that are equal up to rounding would become one.
        return centres if short is None else torch.where(short.rows_B[:, None, None, None], means, centres)

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
