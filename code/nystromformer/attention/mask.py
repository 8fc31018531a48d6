"""The mask of a batch, built once per forward of a model and shared by its layers.

Shapes: B batch, N tokens, M landmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from nystromformer.attention.global_tokens import GlobalTokens
from nystromformer.attention.landmarks import Ranges, Segments, first_of_segments
from nystromformer.attention.scores import infinite_bias
from nystromformer.attention.tracing import is_plain

T = TypeVar("T")
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
"""Integers as wide as the floats, whose bits a CPU clears in the time of a product."""
_FEW = 1 << 16
"""Numbers for which the choice between them and zero takes no longer."""


class Order(NamedTuple):
    """A row's valid tokens first, in their order, then the others."""

    tokens_BN: Tensor
    """The token that stands at each place, int64."""
    places_BN: Tensor
    """The place of each token, int64: the inverse permutation."""


class AttentionMask:
    """Which tokens count, and what the layers derive from that. Nothing here waits for the device.

    Args:
        keep_BN: bool, True where the token counts; any pattern.
        global_BN: bool, True where the token is marked as global, for attentions that have global tokens. A mark at a
            masked position does not count.

    Raises:
        ValueError: a mask that is not bool (B, N).
    """

    def __init__(self, keep_BN: Tensor, global_BN: Tensor | None = None) -> None:
        _check(keep_BN, "mask")
        if global_BN is not None:
            _check(global_BN, "global_BN", tuple(keep_BN.shape))
        self.keep_BN = keep_BN
        self.global_BN = global_BN
        self.lengths_B = keep_BN.sum(1)
        # A softmax over no key at all is NaN: a row without valid tokens attends to its first (zeroed) position, and
        # its output is zeroed afterwards.
        first_N = torch.arange(keep_BN.shape[1], device=keep_BN.device) == 0
        self.keys_BN = keep_BN | (first_N & (self.lengths_B == 0)[:, None])
        self._derived: dict[object, Any] = {}

    @staticmethod
    def wrap(mask: Tensor | AttentionMask | None, q: Tensor) -> AttentionMask | None:
        """An AttentionMask for q (B, H, N, D) from what a caller passed.

        Raises:
            ValueError: a mask that is not (B, N), with a sentence on 4-D and (N, N) masks; no token at all.
        """
        if q.shape[2] == 0:
            raise ValueError("expected at least one token per row, found none; pad empty rows and mask them")
        if mask is None:
            return None
        _check(mask.keep_BN if isinstance(mask, AttentionMask) else mask, "mask", (q.shape[0], q.shape[2]))
        return mask if isinstance(mask, AttentionMask) else AttentionMask(mask)

    def copied(self) -> AttentionMask:
        """The same mask, of tensors of its own."""
        return AttentionMask(self.keep_BN.clone(), None if self.global_BN is None else self.global_BN.clone())

    def multiplier(self, dtype: torch.dtype) -> Tensor:
        """(B, 1, N, 1): one where the token counts, zero elsewhere."""
        return self._once(("multiplier", dtype), lambda: self.keep_BN[:, None, :, None].to(dtype))

    def zeroed(self, x_BHND: Tensor) -> Tensor:
        """x with zeros at masked positions, and its gradient, too, whatever stands there; a product with zero keeps
        NaN and infinity.
        """
        by_bits = x_BHND.device.type == "cpu" and not is_plain() and x_BHND.dtype in _BITS
        if not by_bits or x_BHND.numel() <= _FEW:
            return torch.where(self.keep_BN[:, None, :, None], x_BHND, 0.0)
        zeroed: Tensor = _ClearBits.apply(x_BHND, self.kept_bits(x_BHND.dtype))
        return zeroed

    def zeroed_tokens(self, x_BNE: Tensor) -> Tensor:
        """The same of tokens, (B, N, E)."""
        return self.zeroed(x_BNE[:, None])[:, 0]

    def kept_bits(self, dtype: torch.dtype) -> Tensor:
        """(B, 1, N, 1), integers of dtype's width: all bits where the token counts, none elsewhere."""
        return self._once(("bits", dtype), lambda: -self.keep_BN[:, None, :, None].to(_BITS[dtype]))

    def bias(self, dtype: torch.dtype) -> Tensor:
        """(B, 1, 1, N): what is added to the scores of the keys, zero or -inf; never -inf for a whole row."""
        return self._once(("bias", dtype), lambda: infinite_bias(self.keys_BN, dtype)[:, None, None])

    def segments(self, num_landmarks: int) -> Segments:
        """The landmarks' segments of each row's own valid tokens (eq. 16)."""
        return self._of_landmarks(Segments.of_mask, num_landmarks)

    def ranges(self, num_landmarks: int) -> Ranges:
        """The same segments as ranges of positions, which kernels take."""
        return self._of_landmarks(Ranges.of_mask, num_landmarks)

    def first_of_segments(self, num_landmarks: int) -> Tensor:
        """(B, M): the position of each segment's first token."""
        return self._of_landmarks(first_of_segments, num_landmarks)

    def _of_landmarks(self, derive: Callable[[Tensor, Tensor, int], T], num_landmarks: int) -> T:
        return self._once((derive, num_landmarks), lambda: derive(self.keep_BN, self.lengths_B, num_landmarks))

    def _once(self, key: object, derive: Callable[[], T]) -> T:
        """What is derived from the mask, the first time that it is asked for."""
        if key not in self._derived:
            # What inference mode makes could not be used in training later.
            inferring = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
            with torch.inference_mode(False) if inferring else nullcontext():
                self._derived[key] = derive()
        derived: T = self._derived[key]
        return derived

    @property
    def with_all_tokens(self) -> AttentionMask:
        """The same marks on a mask that keeps all tokens."""
        return self._once("all", lambda: AttentionMask(torch.ones_like(self.keep_BN), self.global_BN))

    @property
    def order(self) -> Order | None:
        """Where each row's valid tokens would stand without the others before them; None where they do already, which
        is seen on a CPU alone, and not while a graph is traced: elsewhere it would have to be waited for.
        """
        return self._once("order", self._order)

    def _order(self) -> Order | None:
        if self._can_look and not (self.keep_BN[:, 1:] & ~self.keep_BN[:, :-1]).any():
            return None
        tokens_BN = torch.argsort((~self.keep_BN).to(torch.int8), dim=1, stable=True)
        return Order(tokens_BN, torch.argsort(tokens_BN, dim=1))

    def global_tokens(self, num_first: int, capacity: int) -> GlobalTokens:
        """The first `num_first` valid tokens of each row and up to `capacity` others that are marked, by their places.

        Raises:
            ValueError: a row has more marked tokens; a RuntimeError where one would have to wait for their number.
        """
        return self._once(("global", num_first, capacity), lambda: self._global_tokens(num_first, capacity))

    def _global_tokens(self, num_first: int, capacity: int) -> GlobalTokens:
        marked_BN = None
        if self.global_BN is not None:
            marked_BN = self.global_BN & self.keep_BN
            marked_BN = marked_BN if self.order is None else marked_BN.gather(1, self.order.tokens_BN)
        length = self.keep_BN.shape[1]
        return GlobalTokens.of_rows(self.lengths_B, marked_BN, length, num_first, capacity, self._can_look)

    @property
    def _can_look(self) -> bool:
        return self.keep_BN.device.type == "cpu" and not is_plain()


class _ClearBits(torch.autograd.Function):
    """A bitwise "and", which on a CPU takes a third of the time of `torch.where`; linear, and its own gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept_bits: Tensor) -> Tensor:
        ctx.save_for_backward(kept_bits)
        return (x.view(kept_bits.dtype) & kept_bits).view(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _ClearBits.apply(grad, *ctx.saved_tensors), None


def _check(keep_BN: Any, name: str, shape: tuple[int, ...] | None = None) -> None:
    is_tensor = isinstance(keep_BN, Tensor)
    if is_tensor and (keep_BN.ndim != 2 or (shape is not None and keep_BN.shape != shape)):
        raise ValueError(
            f"{name} must have the shape (batch, tokens){'' if shape is None else f' = {tuple(shape)}'}, found "
            f"{tuple(keep_BN.shape)}. The mask says per token whether it counts. A mask per pair of tokens, (N, N) or "
            "4-D, cannot be applied: the N x N scores are never formed. Turn a padding mask of shape (batch, 1, 1, "
            "tokens) into mask[:, 0, 0] == 0 (additive) or mask[:, 0, 0] (bool)."
        )
    if not is_tensor or keep_BN.dtype != torch.bool:
        found = keep_BN.dtype if is_tensor else type(keep_BN).__name__
        raise ValueError(
            f"{name} must be a torch.Tensor of bool with True = keep, found {found}; pass torch.as_tensor(mask).bool()"
        )
