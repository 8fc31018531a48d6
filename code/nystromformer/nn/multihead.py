"""`nn.MultiheadAttention` with another attention within.

Shapes: B batch, H heads, N tokens, D head dim, E width, F = 3 E.
"""

from copy import copy

import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.attention.swapped import AttentionDropout, kept_of_additive, own_keys_refused
from nystromformer.config import AttentionConfig


class MultiheadAttention(nn.MultiheadAttention):
    """A module's projections, the very same parameters, around an attention; its calls and its state dict are those of
    `nn.MultiheadAttention`, with the attention's own weights under `core`, if it has any.

    Args:
        replaced: whose place it takes.
        config: the attention.
        attention_dropout, max_length: as for `replace_attention`.

    Raises:
        ValueError: a module whose place cannot be taken; an attention without queries and keys of its own.
    """

    def __init__(
        self,
        replaced: nn.MultiheadAttention,
        config: AttentionConfig,
        *,
        attention_dropout: AttentionDropout = "refuse",
        max_length: int | None = None,
    ) -> None:
        if (reason := _why_not(replaced) or own_keys_refused(config)) is not None:
            raise ValueError(f"{config.name} cannot take the place of {type(replaced).__name__}: {reason}")
        nn.Module.__init__(self)
        # Its attributes and hooks too; the dicts of its parts are copies, to which the attention is added.
        own = {"_parameters", "_buffers", "_modules"}
        self.__dict__.update({key: copy(x) if key in own else x for key, x in replaced.__dict__.items()})
        # With True nn.TransformerEncoderLayer would not call this module in evaluation but compute softmax itself, from
        # the weights, and nn.TransformerEncoder would hand it nested tensors. The instance's: copies restore it so.
        self._qkv_same_embed_dim = False
        self.attention_dropout = attention_dropout
        weight_FE = replaced.in_proj_weight
        core = create_attention(config, num_heads=self.num_heads, head_dim=self.head_dim, max_length=max_length)
        self.core = core.to(device=weight_FE.device, dtype=weight_FE.dtype).train(replaced.training)
        # Without it NaN at masked positions would reach the gradients of the projections.
        self.zeroes_masked = core.holds.masking

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """As `nn.MultiheadAttention` of self-attention; the weights, which are never formed, are None.

        Args:
            key, value: of query's shape: they are of the same tokens, and the mask is of all three.
            key_padding_mask: True where a token does not count; or numbers, zero and -inf.
            attn_mask, is_causal: refused: masks for each pair of tokens.

        Raises:
            ValueError: what is refused, shapes that do not fit, dropout of weights in training.
        """
        self._check(query, key, value, attn_mask, is_causal)
        rows = query.ndim == 3
        # Mostly one tensor, which is projected once.
        given = [query] if key is query and value is query else [query, key, value]
        if not rows:
            given = [x[None] for x in given]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        mask = None
        if key_padding_mask is not None:
            is_additive = key_padding_mask.is_floating_point()
            keep_BN = kept_of_additive(key_padding_mask) if is_additive else ~key_padding_mask
            mask = AttentionMask.wrap(keep_BN, given[0][:, None])
        if mask is not None and self.zeroes_masked:
            given = [mask.zeroed_tokens(x) for x in given]
        q_BHND, k_BHND, v_BHND = self._projected(given)
        out_BHND: Tensor = self.core(q_BHND, k_BHND, v_BHND, mask)
        out: Tensor = self.out_proj(out_BHND.transpose(1, 2).flatten(2))
        if not rows:
            return out[0], None
        return (out if self.batch_first else out.transpose(0, 1)), None

    def _projected(self, given: list[Tensor]) -> tuple[Tensor, ...]:
        """Queries, keys and values of one tensor (B, N, E), or of three."""
        weight_FE, bias_F = self.in_proj_weight, self.in_proj_bias
        if len(given) == 1:
            parts = F.linear(given[0], weight_FE, bias_F).chunk(3, dim=2)
        else:
            biases = [None] * 3 if bias_F is None else bias_F.chunk(3)
            parts = tuple(map(F.linear, given, weight_FE.chunk(3), biases))
        return tuple(part.view(*part.shape[:2], self.num_heads, self.head_dim).transpose(1, 2) for part in parts)

    def _check(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool) -> None:
        if is_causal or attn_mask is not None:
            raise ValueError(
                "attn_mask and is_causal are refused: the N x N scores that they would hide are never formed, and no "
                "landmark can hide what follows from a token. Pass key_padding_mask for padding."
            )
        if any(x.is_nested for x in (query, key, value)):
            raise ValueError("nested tensors are refused: pass padded ones and key_padding_mask")
        if not key.shape == value.shape == query.shape:
            raise ValueError(
                f"key {tuple(key.shape)} and value {tuple(value.shape)} must have query's shape {tuple(query.shape)}: "
                "what attends to other tokens is cross-attention, which stays nn's own"
            )
        if self.training and self.dropout > 0 and self.attention_dropout == "refuse":
            raise ValueError(
                f"dropout={self.dropout:g} drops weights of pairs of tokens in training, which are never formed: set "
                'dropout of the attention to 0, or replace_attention(..., attention_dropout="leave_out")'
            )


def _why_not(module: nn.MultiheadAttention) -> str | None:
    """Why a module's place cannot be taken; None where it can."""
    joint = ("in_proj_weight", "in_proj_bias")  # a pruned out_proj is called, and computes its own
    if any(isinstance(getattr(module, name), Tensor) and module._parameters.get(name) is None for name in joint):
        return (
            "its weights are parametrised or pruned, computed from others before each call: make them parameters "
            "first, by torch.nn.utils.prune.remove or parametrize.remove_parametrizations"
        )
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        return f"{type(module).__name__} is a class of its own, whose calls may mean something else"
    if module.in_proj_weight is None or not module.kdim == module.vdim == module.embed_dim:
        return (
            f"its keys and values have the widths {module.kdim} and {module.vdim}, its queries {module.embed_dim}: "
            "cross-attention"
        )
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn add a token to the keys that is none of the queries'"
    return None
