"""Self-attention with projections of its own, as a layer of any model.

Shapes: B batch, H heads, N tokens, D head dim, E width.
"""

from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.config import AttentionConfig
from nystromformer.model.dropout import Dropout


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
        max_length: tokens of the longest input, for methods that learn something for each place.
        parameters: the attention's own, such as `num_landmarks=64, conv_kernel_size=33`.

    Raises:
        ValueError: a width that the heads do not divide, an unknown attention, impossible parameters, a `max_length`
            that is missing.

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
        self.dim, self.heads, self.head_dim = dim, heads, head_dim
        self.core = create_attention(attention, num_heads=heads, head_dim=head_dim, max_length=max_length, **parameters)
        # Without it NaN at masked positions would reach the gradients of the projections.
        self.zeroes_masked = self.core.holds.masking
        needs = self.core.needs
        self.has_key = not (needs.no_key or needs.shared_query_key)
        inner = heads * head_dim
        self.qkv = nn.Linear(dim, (self.has_key + 2) * inner, bias=qkv_bias)
        self.out = nn.Linear(inner, dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | AttentionMask | None = None) -> Tensor:
        """(B, N, E): what stands at masked positions has no meaning.

        Args:
            x: (B, N, E), any number of tokens.
            mask: None (all tokens count), bool (B, N) with True = keep, in any pattern, or an AttentionMask, which
                layers share.

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
        q_BHND, *others, v_BHND = self.qkv(x).unflatten(2, (-1, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        # What keys are made of the queries is queries; what keys are not looked at may be any.
        k_BHND = others[0] if self.has_key else q_BHND
        out_BNE: Tensor = self.out(self.core(q_BHND, k_BHND, v_BHND, mask).transpose(1, 2).flatten(2))
        dropped: Tensor = self.dropout(out_BNE)
        return dropped


def head_dim_of(dim: int, heads: int) -> int:
    """D of heads that share the width; ValueError where they do not divide it."""
    if heads < 1 or dim < 1 or dim % heads:
        raise ValueError(f"expected dim to be a multiple of heads, found dim = {dim} and heads = {heads}")
    return dim // heads
