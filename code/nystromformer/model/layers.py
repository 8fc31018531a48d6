"""The encoder layer: self-attention and feed-forward, normalised before or after.

Shapes: B batch, H heads, N tokens, K of their positions, D head dim, E width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.attention.tracing import has_own_weights
from nystromformer.config import AttentionConfig, ModelConfig
from nystromformer.model.dropout import Dropout
from nystromformer.model.norm import build_norm
from nystromformer.model.rotary import Rotation, rotated


class SelfAttention(nn.Module):
    """Projections around an attention. What it does not look at, or has in common with another, gets none."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__()
        width, inner = config.transformer_dim, config.num_head * config.head_dim
        self.num_heads = config.num_head
        self.core = create_attention(
            attention, num_heads=config.num_head, head_dim=config.head_dim, max_length=config.max_seq_len
        )
        needs = self.core.needs
        self.query = nn.Linear(width, inner, config.bias)
        self.key = None if needs.shared_query_key or needs.no_key else nn.Linear(width, inner, config.bias)
        self.value = nn.Linear(width, inner, config.bias)
        self.output = nn.Linear(inner, width, config.bias)
        self.recompute = config.attention_grad_checkpointing

    def forward(
        self,
        x_BNE: Tensor,
        mask: AttentionMask | None,
        positions_BK: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        q_BHND = self._split(self.query(x_BNE), rotation)
        k_BHND = q_BHND if self.key is None else self._split(self.key(x_BNE), rotation)
        v_BHND = self._split(self.value(x_BNE))
        if self.recompute and _may_recompute(self):
            # Without random numbers in the attention there is no generator state to keep for the second run.
            keep_state = self.core.needs.random_numbers
            out_BHND = checkpoint(
                self.core, q_BHND, k_BHND, v_BHND, mask, use_reentrant=False, preserve_rng_state=keep_state
            )
        else:
            out_BHND = self.core(q_BHND, k_BHND, v_BHND, mask)
        out: Tensor = self.output(at_positions(out_BHND.transpose(1, 2).flatten(2), positions_BK))
        return out

    def _split(self, x_BNE: Tensor, rotation: Rotation | None = None) -> Tensor:
        B, N, E = x_BNE.shape
        x_BNHD = x_BNE.view(B, N, self.num_heads, E // self.num_heads)
        return (x_BNHD if rotation is None else rotated(x_BNHD, rotation)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear maps with an activation between, which is computed again in the backward where asked. Gated ("glu",
    Shazeer 2020), the first map gives two hidden layers, and the activation of one times the other goes on.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden = config.transformer_hidden_dim
        self.gated = config.feed_forward == "glu"
        self.up = nn.Linear(config.transformer_dim, 2 * hidden if self.gated else hidden, config.bias)
        self.down = nn.Linear(hidden, config.transformer_dim, config.bias)
        self.activation = activation(config.activation)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.recompute = config.gelu_grad_checkpointing

    def forward(self, x_BNE: Tensor) -> Tensor:
        hidden = self.up(x_BNE)
        if self.recompute and _may_recompute(self):
            draws = self.dropout.p > 0
            out: Tensor = checkpoint(self._second_half, hidden, use_reentrant=False, preserve_rng_state=draws)
            return out
        return self._second_half(hidden)

    def _second_half(self, hidden: Tensor) -> Tensor:
        if self.gated:
            gated, factor = hidden.chunk(2, -1)
            hidden = self.activation(gated) * factor
        else:
            hidden = self.activation(hidden)
        out: Tensor = self.down(self.dropout(hidden))
        return out


def _may_recompute(module: nn.Module) -> bool:
    """Whether the backward pass may compute a part of the module again."""
    return module.training and has_own_weights(module)


class Layer(nn.Module):
    """x + attention, x + feed-forward; a norm after each sum ("post", BERT) or before each branch ("pre"). Without
    `normed` the attention has none, as its input is normalised already.
    """

    def __init__(self, config: ModelConfig, attention: AttentionConfig, normed: bool = True) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.takes_local_rotation = attention.is_local
        self.attention = SelfAttention(config, attention)
        self.attention_norm = build_norm(config, config.transformer_dim) if normed else nn.Identity()
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = build_norm(config, config.transformer_dim)
        apart = config.attention_dropout_prob
        self.attention_dropout = Dropout(config.dropout_prob if apart is None else apart)
        self.dropout = Dropout(config.dropout_prob)

    def forward(
        self,
        x_BNE: Tensor,
        mask: AttentionMask | None,
        positions_BK: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """(B, N, E), or at the given positions only, (B, K, E): all that follows the attention is by position."""
        residual = at_positions(x_BNE, positions_BK)
        if self.pre_norm:
            x = self.attended(x_BNE, mask, positions_BK, residual, rotation)
            out = self.fed_forward(x, x)
        else:
            branch_BNE = self.attention(x_BNE, mask, positions_BK, rotation)
            x = self.attention_norm(self.attention_dropout(branch_BNE, residual))
            out = self.feed_forward_norm(self.dropout(self.feed_forward(x), x))
        return out

    def attended(
        self,
        x_BNE: Tensor,
        mask: AttentionMask | None,
        positions_BK: Tensor | None = None,
        residual: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """The first branch of a layer that normalises before each, added to `residual` where there is one."""
        branch_BNE = self.attention(self.attention_norm(x_BNE), mask, positions_BK, rotation)
        out: Tensor = self.attention_dropout(branch_BNE, residual)
        return out

    def fed_forward(self, x_BNE: Tensor, residual: Tensor | None = None) -> Tensor:
        """The second."""
        out: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(x_BNE)), residual)
        return out


def at_positions(x_BNE: Tensor, positions_BK: Tensor | None) -> Tensor:
    """(B, K, E): the vectors at the given positions of each row; all of them, (B, N, E), where none are given."""
    if positions_BK is None:
        return x_BNE
    B, N, E = x_BNE.shape
    rows = positions_BK + torch.arange(B, device=x_BNE.device)[:, None] * N
    return x_BNE.reshape(B * N, E).index_select(0, rows.flatten()).view(B, positions_BK.shape[1], E)


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """GELU, exact ("gelu") or with the tanh approximation ("gelu_tanh"), or SiLU ("silu")."""
    if name == "silu":
        return F.silu
    return partial(F.gelu, approximate="tanh" if name == "gelu_tanh" else "none")
