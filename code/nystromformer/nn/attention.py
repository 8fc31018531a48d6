"""Self-attention with projections of its own, as a layer of any model.

Shapes: B batch, H heads, N tokens, D head dim, E width, K taps, P of queries, keys and values those that are projected.
"""

from collections.abc import Mapping
from typing import Literal, Self

from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.config import AttentionConfig, attention_config
from nystromformer.model.dropout import Dropout
from nystromformer.nn.lengths import check_max_length

_QKV, _OUT, _OUT_BIAS, _CONV = "to_qkv.weight", "to_out.0.weight", "to_out.0.bias", "res_conv.weight"


class NystromAttention(nn.Module):
    """Nyström attention, or another one by its name, between a projection of the tokens and one of what it gives.

    Args:
        dim: E, the width of the tokens, in and out.
        heads: H.
        head_dim: D; None: dim / heads.
        attention: which one, by a name of `nystromformer.config.ATTENTIONS` or as a config. What it does not look at
            (queries or keys of some) is not projected.
        qkv_bias: whether the projections of queries, keys and values have a bias; that of the output has one.
        dropout: probability with which an entry of the output is zeroed in training.
        max_length: tokens of the longest input, for methods that learn something for each place, and for these alone.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: a width that the heads do not divide, an unknown attention, impossible parameters, a `max_length`
            that is missing or has no effect.

    Where the method draws random numbers anew in training, tell it of each step: `layer.core.at_step(step)`.

    >>> layer = NystromAttention(256, heads=4, num_landmarks=32, conv_kernel_size=33)
    >>> layer(torch.randn(2, 1000, 256), torch.arange(1000) < torch.tensor([[1000], [37]])).shape
    torch.Size([2, 1000, 256])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        head_dim: int | None = None,
        *,
        attention: str | AttentionConfig = "nystrom",
        qkv_bias: bool = True,
        dropout: float = 0.0,
        max_length: int | None = None,
        **parameters: object,
    ) -> None:
        super().__init__()
        head_dim = head_dim_of(dim, heads) if head_dim is None else head_dim
        config = attention_config(attention, **parameters)
        check_max_length([config], max_length)
        self.dim, self.heads, self.head_dim = dim, heads, head_dim
        self.core = create_attention(config, num_heads=heads, head_dim=head_dim, max_length=max_length)
        # Without it NaN at masked positions would reach the gradients of the projections.
        self.zeroes_masked = self.core.holds.masking
        needs = self.core.needs
        self.has_query = not needs.no_query
        self.has_key = not (needs.no_key or needs.shared_query_key)
        inner = heads * head_dim
        self.qkv = nn.Linear(dim, (self.has_query + self.has_key + 1) * inner, bias=qkv_bias)
        self.out = nn.Linear(inner, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
        """Attend.

        Args:
            x: (B, N, E), any number of tokens.
            mask: None (all tokens count), bool (B, N) with True = keep, in any pattern, or an AttentionMask, which
                layers share.

        Returns:
            (B, N, E). What stands at masked positions has no meaning: of the attention nothing, and the bias.

        Raises:
            ValueError: another shape, or a mask that does not fit.
        """
        if x.is_nested:
            raise ValueError("nested tensors are refused: pass padded ones and a mask")
        if x.ndim != 3 or x.shape[2] != self.dim:
            raise ValueError(f"x must have the shape (batch, tokens, {self.dim}), found {tuple(x.shape)}")
        mask = AttentionMask.wrap(mask, x[:, None])
        if mask is not None and self.zeroes_masked:
            x = mask.zeroed_tokens(x)
        *others, v_BHND = self.qkv(x).unflatten(2, (-1, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        q_BHND = others[0] if self.has_query else v_BHND
        # What keys are made of the queries is queries; what keys are not looked at may be any.
        k_BHND = others[-1] if self.has_key else q_BHND
        out_BNE: Tensor = self.out(self.core(q_BHND, k_BHND, v_BHND, mask).transpose(1, 2).flatten(2))
        dropped: Tensor = self.dropout(out_BNE)
        return dropped

    @classmethod
    def from_lucidrains(
        cls,
        state_dict: Mapping[str, Tensor],
        heads: int | None = None,
        *,
        num_landmarks: int = 256,
        pinv_iterations: int = 6,
        pinv_start: Literal["matrix", "batch"] = "batch",
        dropout: float = 0.0,
    ) -> Self:
        """With the weights of `nystrom_attention.NystromAttention` (the package nystrom-attention, lucidrains'; as of
        0.0.14).

        For more tokens than landmarks, a number of tokens that the landmarks divide, and no mask, both give the same
        output, up to rounding. Elsewhere this layer computes what every attention here does, and that module does not:

        - Other lengths: it puts zero vectors before the first token, up to the next multiple of `num_landmarks`.
          Without a mask these count: as keys with a score of zero, and in the first segments' means. Here the segments
          are of nearly equal length, and there are no tokens but the row's.
        - A mask: its segments are of the padded length, their means over the valid tokens within; a segment of padding
          alone stays in the matrix that is inverted, as a row of equal weights. Here segments are of each row's own
          valid tokens, so that padding changes nothing.
        - At most `num_landmarks` tokens: it goes through the same approximation. Here they get exact softmax attention.
        - The inverse (eq. 14) starts from Aᵀ divided by the largest column sum times the largest row sum of the whole
          batch, so that a row's output depends on its neighbours: `pinv_start="batch"`. With `"matrix"`, which all
          else here has by default, it does not, and differs by what six iterations leave.
        - Masked tokens get the output's bias in both; there the convolution reaches into them, too.

        Args:
            state_dict: `to_qkv.weight`, `to_out.0.weight`, `to_out.0.bias`, and with its residual `res_conv.weight`.
            heads: H; None: as many as the convolution has filters.
            num_landmarks, pinv_iterations, dropout: as that module was built with; no weight tells. They are its
                defaults.
            pinv_start: "batch" or "matrix", as above.

        Raises:
            ValueError: names that are missing or unknown, shapes that do not fit each other, heads that are not known
                or do not fit.
        """
        names, needed = set(state_dict), {_QKV, _OUT, _OUT_BIAS}
        if not needed <= names <= needed | {_CONV}:
            raise ValueError(
                f"expected the weights of one nystrom_attention.NystromAttention, {', '.join(sorted(needed))} and "
                f"optionally {_CONV}; missing: {_listed(needed - names)}; unknown: {_listed(names - needed - {_CONV})}"
            )
        kernel_H1K1 = state_dict.get(_CONV)
        filters = None if kernel_H1K1 is None else len(kernel_H1K1)
        heads = filters if heads is None else heads
        if heads is None:
            raise ValueError(
                f"without {_CONV} the weights do not show the number of heads: expected heads, as the layer was built "
                "with"
            )
        if filters not in (None, heads):
            raise ValueError(f"expected heads = {filters}, the filters of {_CONV}, found {heads}")
        inner, dim = state_dict[_QKV].shape[0] // 3, state_dict[_QKV].shape[1]
        if heads < 1 or inner % heads or state_dict[_OUT].shape != (dim, inner):
            raise ValueError(
                f"{_QKV} {tuple(state_dict[_QKV].shape)} and {_OUT} {tuple(state_dict[_OUT].shape)} do not fit "
                f"{heads} heads: expected (3 x heads x head_dim, dim) and (dim, heads x head_dim)"
            )
        layer = cls(
            dim,
            heads,
            inner // heads,
            qkv_bias=False,
            dropout=dropout,
            num_landmarks=num_landmarks,
            pinv_iterations=pinv_iterations,
            pinv_start=pinv_start,
            conv_kernel_size=None if kernel_H1K1 is None else kernel_H1K1.shape[2],
        ).to(state_dict[_QKV])
        ours = {_QKV: "qkv.weight", _OUT: "out.weight", _OUT_BIAS: "out.bias", _CONV: "core.skip.weight"}
        layer.load_state_dict({ours[name]: weight for name, weight in state_dict.items()})
        return layer

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def head_dim_of(dim: int, heads: int) -> int:
    """D of heads that share the width.

    Raises:
        ValueError: heads that do not divide it.
    """
    if heads < 1 or dim < 1 or dim % heads:
        raise ValueError(f"expected dim to be a multiple of heads, found dim = {dim} and heads = {heads}")
    return dim // heads


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
