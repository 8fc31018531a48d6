"""The contract that every attention keeps.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from nystromformer.attention.mask import AttentionMask
from nystromformer.attention.skip import ConvolutionSkip
from nystromformer.attention.tracing import without_autocast
from nystromformer.config.attention import AttentionConfig


@dataclass(frozen=True)
class Needs:
    """What a method asks of the code around it."""

    shared_query_key: bool = False
    """Queries and keys are one tensor: no key projection is built."""
    no_key: bool = False
    """Keys are not looked at: no projection is built for them, and any tensor of their shape will do."""
    max_length: bool = False
    """Parameters are learned for a length: longer input is refused."""
    layer_sharing: bool = False
    """Layers may share the method's parameters."""
    random_numbers: bool = False
    """The output depends on random numbers, which `at_step` draws."""
    global_tokens: bool = False
    """Some tokens are global; the mask may say which (`AttentionMask.global_BN`), for other methods it need not."""


@dataclass(frozen=True)
class Holds:
    """Which properties of the contract a method keeps; the shared test suite reads this."""

    padding: bool = True
    """Appended masked tokens change no valid output."""
    masking: bool = True
    """What stands at masked positions matters nowhere, NaN and infinity included."""
    zeros: bool = True
    """The output at masked positions is zero."""
    batch: bool = True
    """A row's output does not depend on the other rows."""
    any_length: bool = True
    """Every length of at least one token is accepted."""
    compile: bool = True
    """`torch.compile(fullgraph=True)` works."""
    export: bool = True
    """One `torch.export` program serves any batch size and length."""
    weights: bool = True
    """All channels of a head are mixed alike, by one matrix, whose rows and columns `weights` gives."""


class Attention(nn.Module, ABC):
    """Attention over projected tensors: `attention(q_BHND, k_BHND, v_BHND, mask) -> out_BHND`.

    Args:
        config: the method's parameters. All methods have `conv_kernel_size`, the taps of a depthwise convolution of V
            that is added to the output (paper, Figure 4), and `ignore_mask`, which takes masked tokens for tokens like
            any others, as the authors' classification code does; a mask is then only checked.
        num_heads: H, the number of heads of q, k and v.
        head_dim: D, the width of a head; scores are scaled by 1/√D.
    """

    config: AttentionConfig
    needs: Needs = Needs()

    def __init__(self, config: AttentionConfig, num_heads: int, head_dim: int) -> None:
        super().__init__()
        if num_heads < 1 or head_dim < 1:
            raise ValueError(f"num_heads and head_dim must be at least 1, found {num_heads} and {head_dim}")
        self.config = config
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.skip = None if config.conv_kernel_size is None else ConvolutionSkip(num_heads, config.conv_kernel_size)

    @property
    def holds(self) -> Holds:
        """The properties that this module, as configured, keeps."""
        by_mask = not self.config.ignore_mask
        return Holds(padding=by_mask, masking=by_mask, zeros=by_mask)

    @property
    def zeroes_masked_query_key(self) -> bool:
        """Whether Q and K arrive at `attend` zeroed at masked positions, as V does."""
        return True

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | AttentionMask | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Attend.

        Args:
            q, k, v: (B, H, N, D), of one dtype; where `needs.shared_query_key`, k is q itself.
            mask: None (all tokens count), bool (B, N) with True = keep, in any pattern, or an AttentionMask. What
                stands at masked positions matters nowhere, NaN and infinity included, where `holds.masking`.
            is_causal: refused where true; it is here so that code written for
                `torch.nn.functional.scaled_dot_product_attention` gets a sentence instead of a wrong answer.

        Returns:
            (B, H, N, D); zero at masked positions, unless `ignore_mask`.

        Raises:
            ValueError: shapes that do not fit, a mask that is not (B, N), causal use, keys of their own where they
                must be the queries.
        """
        self._check(q, k, v, is_causal)
        mask = self._applied(mask, q)
        if q.shape[0] == 0:
            return v * 1  # no row to attend in
        if (fused := self.by_kernels(q, k, v, mask)) is not None:
            return fused
        q, k, v = self._zeroed(q, k, v, mask)
        out = self.attend(q, k, v, mask)
        if self.skip is None:
            return out if mask is None else mask.zeroed(out)
        total: Tensor = self.skip(v, out, mask)
        return total

    def weights(
        self, q: Tensor, k: Tensor, mask: Tensor | AttentionMask | None = None, *, queries: Sequence[int]
    ) -> Tensor:
        """Rows of the attention matrix that the method stands for, for heatmaps: how much chosen tokens attend to all.
        They are of the method as it computes, so approximated ones may be negative and need not sum to one. The
        convolution has no part in them. No N x N matrix is formed: for a few tokens it takes the time and memory of a
        forward and a backward.

        Args:
            q, k: (B, H, N, D).
            mask: as in `forward`.
            queries: positions of the tokens whose rows are asked for.

        Returns:
            (B, H, queries, N), without a graph, in float32 or wider; zero where a token is masked, unless
            `ignore_mask`.

        Raises:
            ValueError: as `forward`; a method that has no such matrix.
        """
        with torch.inference_mode(False), torch.no_grad(), without_autocast(q):
            return self.rows_of_weights(*self._ready_for_weights(q, k, mask), list(queries))

    def mean_weights(self, q: Tensor, k: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
        """How much each token is attended to: the mean over the valid queries of what `weights` says of them, in the
        time and memory of one forward and backward, however many tokens there are.

        Returns:
            (B, H, N), without a graph, in float32 or wider; zero where a token is masked, unless `ignore_mask`.
        """
        with torch.inference_mode(False), torch.no_grad(), without_autocast(q):
            q, k, mask = self._ready_for_weights(q, k, mask)
            share_BN = torch.full_like(q[:, 0, :, 0], 1 / q.shape[2])
            if mask is not None:
                share_BN = mask.keep_BN.to(q.dtype) / mask.lengths_B.clamp(min=1)[:, None]
            return self._sums_of_rows(q, k, mask, share_BN[..., None])[:, :, 0]

    def _ready_for_weights(
        self, q: Tensor, k: Tensor, mask: Tensor | AttentionMask | None
    ) -> tuple[Tensor, Tensor, AttentionMask | None]:
        """q and k as `attend` gets them, in float32 or wider, and the mask that this module goes by."""
        if not self.holds.weights:
            raise ValueError(
                f"{type(self).__name__} has no attention weights between tokens: in this configuration it mixes each "
                "channel of the values differently"
            )
        self._check(q, k, q, is_causal=False)
        applied = self._applied(mask, q)
        # Tensors that were made in inference mode take no part in a graph, but their copies do.
        q, k = (x.clone() if x.is_inference() else x.detach() for x in (q, k))
        q, k = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
        if applied is not None:
            applied = applied.copied()
        q, k, _ = self._zeroed(q, k, q, applied)
        return q, k, applied

    def rows_of_weights(self, q: Tensor, k: Tensor, mask: AttentionMask | None, queries: list[int]) -> Tensor:
        """`weights` of queries, (B, H, queries, N), for methods that know a shorter way than all queries' attention."""
        ones_1NQ = q.new_zeros(1, q.shape[2], len(queries))
        ones_1NQ[:, queries, range(len(queries))] = 1
        return self._sums_of_rows(q, k, mask, ones_1NQ)

    def _sums_of_rows(self, q: Tensor, k: Tensor, mask: AttentionMask | None, shares_BNQ: Tensor) -> Tensor:
        """Sums of the matrix' rows, (B, H, Q, N). Whatever the method, its output is A V with an A that depends on Q
        and K alone, and what learned values add: so a row of A is the gradient of one token's output with respect to
        V, and each channel of the head carries one.

        Args:
            shares_BNQ: (B or 1, N, Q), what each row counts in each sum.
        """
        with torch.enable_grad():
            v = torch.zeros_like(q).requires_grad_()
            out = self.attend(*self._zeroed(q, k, v, mask), mask) if len(q) else v * 1
            out = out if mask is None else mask.zeroed(out)
        parts = []
        for shares_BNE in shares_BNQ.split(q.shape[3], dim=2):
            upstream = torch.zeros_like(out)
            upstream[..., : shares_BNE.shape[2]] = shares_BNE[:, None].to(out.dtype)
            (gradient,) = torch.autograd.grad(out, v, upstream, retain_graph=True)
            parts.append(gradient[..., : shares_BNE.shape[2]])
        return torch.cat(parts, dim=3).mT

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        """The method itself. V, and where `zeroes_masked_query_key` Q and K, arrive zeroed at masked positions;
        what is returned there is overwritten with zeros."""

    def by_kernels(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor | None:
        """The whole of `forward` by fused kernels, of methods that have some; None where they do not compute this."""
        return None

    def share(self, first: Self) -> None:
        """Take another layer's parameters for those that layers share; `first` is an attention of the same config."""

    def at_step(self, step: int) -> None:
        """Told before each training step, from 0: where the method draws random numbers, those of this step. They are
        a function of the module's seed and the step.
        """

    def _zeroed(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> tuple[Tensor, Tensor, Tensor]:
        """Zeros, not only weights of zero: a masked key of 1e30 would make its score inf, and inf - inf is NaN."""
        if mask is None:
            return q, k, v
        v = mask.zeroed(v)
        if self.needs.shared_query_key:
            q = k = mask.zeroed(q)
        elif self.zeroes_masked_query_key:
            q, k = mask.zeroed(q), mask.zeroed(k)
        return q, k, v

    def _applied(self, mask: Tensor | AttentionMask | None, q: Tensor) -> AttentionMask | None:
        """The mask that this module goes by: none where it ignores it, which it does after the check."""
        wrapped = AttentionMask.wrap(mask, q)
        return None if self.config.ignore_mask else wrapped

    def _check(self, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> None:
        if is_causal:
            raise ValueError(
                "is_causal=True is refused: the method mixes information over the whole row before a token sees it, "
                "so a causal mask cannot hide the future. Use a decoder's attention instead."
            )
        if q.is_nested:
            raise ValueError("nested tensors are refused: pass padded ones and a mask")
        if q.ndim != 4 or q.shape[1] != self.num_heads or q.shape[3] != self.head_dim:
            raise ValueError(
                f"q must have the shape (batch, {self.num_heads}, tokens, {self.head_dim}), found {tuple(q.shape)}"
            )
        for name, tensor in (("k", k), ("v", v)):
            if tensor.shape != q.shape:
                raise ValueError(f"{name} must have q's shape {tuple(q.shape)}, found {tuple(tensor.shape)}")
            if tensor.dtype != q.dtype:
                raise ValueError(f"{name} must have q's dtype {q.dtype}, found {tensor.dtype}")
        if self.needs.shared_query_key and k is not q:
            raise ValueError(
                "this method computes the keys from the queries: k must be the same tensor as q, found another one"
            )

    def extra_repr(self) -> str:
        return f"{self.config!r}, num_heads={self.num_heads}, head_dim={self.head_dim}"
