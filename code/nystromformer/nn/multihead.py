"""`nn.MultiheadAttention` with another attention within.

Shapes: B batch, H heads, N tokens, D head dim, E width, F = 3 E.
"""

from copy import copy
from typing import Literal, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.attention import AttentionMask, create_attention
from nystromformer.attention.swapped import AttentionDropout, kept_of_additive, own_keys_refused
from nystromformer.config import AttentionConfig
from nystromformer.nn.lengths import check_max_length

NeedWeights = Literal["refuse", "none"]
_JOINT = ("in_proj_weight", "in_proj_bias")
"""Parameters that are read here; a pruned or parametrised `out_proj` is called, and computes its own."""


class MultiheadAttention(nn.MultiheadAttention):
    """A module's projections, the very same parameters, around an attention; its calls and its state dict are those of
    `nn.MultiheadAttention`, with the attention's own weights under `core`, if it has any.

    Args:
        replaced: whose place it takes.
        config: the attention.
        attention_dropout: what happens in training where `replaced` drops weights of pairs of tokens, which are never
            formed: "refuse" is an error, "leave_out" leaves it out.
        need_weights: what happens where a call asks for the weights, as torch's does by default: "refuse" is an error,
            "none" returns None for them.
        max_length: as for `replace_attention`.

    Raises:
        ValueError: keys or values of another width, which only cross-attention has; `add_bias_kv`, `add_zero_attn`; a
            class of somebody's own; an attention without queries and keys of its own.
    """

    def __init__(
        self,
        replaced: nn.MultiheadAttention,
        config: AttentionConfig,
        *,
        attention_dropout: AttentionDropout = "refuse",
        need_weights: NeedWeights = "refuse",
        max_length: int | None = None,
    ) -> None:
        reason = why_not(replaced) or own_keys_refused(config)
        if reason is not None:
            raise ValueError(f"{config.name} cannot take the place of {type(replaced).__name__}: {reason}")
        check_max_length([config], max_length)
        nn.Module.__init__(self)
        # Its attributes and hooks too; the dicts of its parts are copies, to which the attention is added.
        own = {"_parameters", "_buffers", "_modules"}
        self.__dict__.update({key: copy(x) if key in own else x for key, x in replaced.__dict__.items()})
        # With True nn.TransformerEncoderLayer would not call this module in evaluation but compute softmax itself, from
        # the weights, and nn.TransformerEncoder would hand it nested tensors. The instance's: copies restore it so.
        self._qkv_same_embed_dim = False
        self.attention_dropout, self.need_weights = attention_dropout, need_weights
        weight_FE = replaced.in_proj_weight
        core = create_attention(config, num_heads=self.num_heads, head_dim=self.head_dim, max_length=max_length)
        self.core = core.to(device=weight_FE.device, dtype=weight_FE.dtype)
        # Without it NaN at masked positions would reach the gradients of the projections.
        self.zeroes_masked = core.holds.masking
        self.core.train(replaced.training)

    def _reset_parameters(self) -> None:
        """nn's, whose own depends on `_qkv_same_embed_dim`."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

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
        """As `nn.MultiheadAttention` of self-attention.

        Args:
            query: (B, N, E) where `batch_first`, else (N, B, E); (N, E) of one row.
            key, value: of query's shape: they are of the same tokens, and the mask is of all three.
            key_padding_mask: (B, N), or (N,) of one row: True where a token does not count; or numbers, zero and -inf.
            need_weights: to be False, unless the module was made with need_weights="none".
            attn_mask: refused: a mask for each pair of tokens.
            average_attn_weights: of weights that are never there, as with need_weights=False in torch's.
            is_causal: refused.

        Returns:
            The output, of query's shape, and None. What stands at positions that do not count has no meaning.

        Raises:
            ValueError: what is refused, shapes that do not fit, dropout of weights in training.
        """
        self._check(query, key, value, need_weights, attn_mask, is_causal)
        rows = query.ndim == 3
        # Mostly one tensor, which is projected once.
        given = [query] if key is query and value is query else [query, key, value]
        if not rows:
            given = [x[None] for x in given]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        mask = None if key_padding_mask is None else AttentionMask.wrap(_kept(key_padding_mask), given[0][:, None])
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

    def _check(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        need_weights: bool,
        attn_mask: Tensor | None,
        is_causal: bool,
    ) -> None:
        if is_causal or attn_mask is not None:
            _refuse(
                "attn_mask and is_causal are refused: the N x N scores that they would hide are never formed, and no "
                "landmark can hide what follows from a token. Pass key_padding_mask for padding."
            )
        if any(x.is_nested for x in (query, key, value)):
            _refuse("nested tensors are refused: pass padded ones and key_padding_mask")
        if query.ndim not in (2, 3) or query.shape[-1] != self.embed_dim:
            _refuse(f"query must be 2-D or 3-D with {self.embed_dim} last, found {tuple(query.shape)}")
        if not key.shape == value.shape == query.shape:
            _refuse(
                f"key {tuple(key.shape)} and value {tuple(value.shape)} must have query's shape {tuple(query.shape)}: "
                "what attends to other tokens is cross-attention, which stays nn's own"
            )
        if need_weights and self.need_weights == "refuse":
            _refuse(
                "need_weights=True asks for the N x N weights, which are never formed: call with need_weights=False, "
                'or where the call is not yours and leaves them, replace_attention(..., need_weights="none"), which '
                "returns None for them. `core.weights` gives those of chosen tokens."
            )
        if self.training and self.dropout > 0 and self.attention_dropout == "refuse":
            _refuse(
                f"dropout={self.dropout:g} drops weights of pairs of tokens in training, which are never formed: set "
                'dropout of the attention to 0, or replace_attention(..., attention_dropout="leave_out")'
            )


def why_not(module: nn.MultiheadAttention) -> str | None:
    """Why a module's place cannot be taken; None where it can."""
    if any(isinstance(getattr(module, name), Tensor) and module._parameters.get(name) is None for name in _JOINT):
        return (
            "its weights are parametrised or pruned, computed from others before each call: make them parameters "
            "first, by torch.nn.utils.prune.remove or parametrize.remove_parametrizations"
        )
    if type(module) not in (nn.MultiheadAttention, MultiheadAttention):
        return f"{type(module).__name__} is a class of its own, whose calls may mean something else"
    if module.in_proj_weight is None or (module.kdim, module.vdim) != (
        module.embed_dim,
        module.embed_dim,
    ):
        return (
            f"its keys and values have the widths {module.kdim} and {module.vdim}, its queries {module.embed_dim}: "
            "cross-attention"
        )
    if module.bias_k is not None or module.add_zero_attn:
        return "add_bias_kv and add_zero_attn add a token to the keys that is none of the queries'"
    return None


def _kept(key_padding_mask: Tensor) -> Tensor:
    """Bool (B, N) with True = keep of torch's mask, in which True, or -inf, is what does not count."""
    if not isinstance(key_padding_mask, Tensor):
        _refuse(f"key_padding_mask must be a torch.Tensor, found {type(key_padding_mask).__name__}")
    if key_padding_mask.is_floating_point():
        if key_padding_mask.ndim != 2:
            _refuse(f"key_padding_mask must have the shape (batch, tokens), found {tuple(key_padding_mask.shape)}")
        return kept_of_additive(key_padding_mask)
    if key_padding_mask.dtype != torch.bool:
        _refuse(f"key_padding_mask must be bool, True where a token does not count, found {key_padding_mask.dtype}")
    return ~key_padding_mask


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)
