"""What transformers calls in the place of softmax: a function of its masks, and one of each layer's attention.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask

from nystromformer.attention import Attention, AttentionMask, create_attention
from nystromformer.attention.swapped import AttentionDropout, kept_of_additive
from nystromformer.config.attention import AttentionConfig

_HARMLESS = {
    *("position_ids", "position_embeddings", "cache_position", "use_cache", "deterministic", "layer_idx"),
    *("max_length_q", "max_length_k", "num_items_in_batch", "return_dict", "output_hidden_states"),
    *("output_router_logits", "past_key_values", "past_key_value", "interpolate_pos_encoding"),
}
"""Arguments that are for others: what they say is in the queries and keys already, or of no concern to an attention."""


class Call(NamedTuple):
    """A layer's attention as it was computed."""

    module: nn.Module
    q_BHND: Tensor
    """Scaled, so that its products with the keys are to be divided by √D."""
    k_BHND: Tensor
    v_BHND: Tensor
    mask: AttentionMask | None
    out_BHND: Tensor


class DropIn:
    """An attention under a name of transformers'; `mask` and `attend` are what is registered.

    Modules are made as layers come, one for each number of a layer, of heads and of dimensions: nothing is added to
    the model. Where a method has random numbers, they are a function of the layer's number alone.
    """

    def __init__(self, name: str, config: AttentionConfig, attention_dropout: AttentionDropout) -> None:
        self.name = name
        self.config = config
        self.attention_dropout = attention_dropout
        self.observers: list[Callable[[Call], None]] = []
        self._modules: dict[tuple[int, int, int, torch.device], Attention] = {}
        self._shared: tuple[weakref.ref[Tensor], AttentionMask] | None = None

    def mask(
        self,
        *,
        mask_function: Callable[..., Any],
        attention_mask: Tensor | None = None,
        local_size: int | None = None,
        dtype: torch.dtype = torch.float32,
        **others: Any,
    ) -> Tensor | None:
        """The mask that all layers get, (B, 1, 1, N): zero where a token counts, the lowest number where it does not,
        so that it is right in a model that adds it to scores of its own. Sliding windows get what sdpa gets.
        """
        if local_size is not None:
            # Layers with a window keep their own attention, and so their own mask.
            made: Tensor | None = sdpa_mask(
                mask_function=mask_function, attention_mask=attention_mask, local_size=local_size, dtype=dtype, **others
            )
            return made
        if mask_function is not bidirectional_mask_function:
            self._refuse(
                "the model",
                "it asks for a causal mask, or for one of its own for each pair of tokens: a decoder, whose tokens may "
                "not see what follows, which no landmark can hide",
            )
        if attention_mask is None:
            return None
        if attention_mask.ndim != 2:
            self._refuse("the model", f"its mask has the shape {tuple(attention_mask.shape)}, expected (batch, tokens)")
        # A tensor of this forward alone, by which the layers find what is derived from it.
        keep_BN = attention_mask != 0
        zeros_BN = torch.zeros(keep_BN.shape, dtype=dtype, device=keep_BN.device)
        handed_out = zeros_BN.masked_fill(~keep_BN, torch.finfo(dtype).min)[:, None, None]
        if not torch.compiler.is_compiling():
            self._shared = weakref.ref(handed_out), AttentionMask(keep_BN)
        return handed_out

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """A layer's attention, as transformers calls it: (B, N, H, D), zero at masked positions, and no weights.

        Args:
            query, key, value: (B, H, N, D); of grouped heads fewer of keys and values.
            attention_mask: from `mask`; or of the model's own, bool or additive, (B, 1, 1, N).
            scaling: what the scores are multiplied by; None: 1/√D.
        """
        where = type(module).__name__
        if is_causal is None:
            is_causal = getattr(module, "is_causal", getattr(module, "is_decoder", False))
        if is_causal:
            self._refuse(where, "it is causal, and no landmark can hide what follows from a token")
        if sliding_window is not None:  # the layer keeps its own attention
            if attention_mask is not None and attention_mask.ndim == 2:
                attention_mask = attention_mask[:, None, None]
            options = {"is_causal": False, "sliding_window": sliding_window, **others}
            own, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **options)
            return own, None
        self._check(where, module, query, key, others)
        if dropout > 0 and self.attention_dropout == "refuse":
            self._refuse(
                where,
                f"it drops {dropout:g} of the weights of pairs of tokens in training, which are never formed: load the "
                "model with that probability at 0 (such as attention_probs_dropout_prob=0.0, attention_dropout=0.0), "
                'or train without it by register(attention_dropout="leave_out")',
            )
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        root = math.sqrt(query.shape[3])
        if scaling is not None and (isinstance(scaling, Tensor) or not math.isclose(scaling * root, 1.0, rel_tol=1e-6)):
            query = query * (scaling * root)  # whose products by 1/√D are those by `scaling`
        mask = self._mask_of(where, attention_mask, query)
        out = self._module(module, query)(query, key, value, mask)
        for observe in self.observers:
            observe(Call(module, query, key, value, mask, out))
        return out.transpose(1, 2).contiguous(), None

    def _check(self, where: str, module: nn.Module, query: Tensor, key: Tensor, others: dict[str, Any]) -> None:
        for name, found in others.items():
            if found is not None and found is not False and name not in _HARMLESS:
                self._refuse(where, f"it passes {name}, which may change scores of pairs of tokens that are not formed")
        if getattr(getattr(module, "config", None), "output_attentions", False):
            self._refuse(where, "output_attentions: the N x N weights are never formed")
        crosses = "cross" in where.lower() or getattr(module, "is_cross_attention", False)
        if crosses or query.shape[2] != key.shape[2]:
            self._refuse(
                where,
                f"{query.shape[2]} queries meet {key.shape[2]} keys of other tokens: cross-attention, or a decoder "
                "with a cache",
            )

    def _refuse(self, where: str, reason: str) -> NoReturn:
        raise ValueError(f'{where} cannot run attn_implementation="{self.name}": {reason}')

    def _mask_of(self, where: str, mask: Tensor | None, query: Tensor) -> AttentionMask | None:
        """The same for all layers of a forward; of a model's own mask, if it says the same to all queries and heads."""
        if mask is None:
            return None
        if not torch.compiler.is_compiling() and self._shared is not None and self._shared[0]() is mask:
            return self._shared[1]
        if mask.ndim == 4 and all(mask.shape[axis] == 1 or mask.stride(axis) == 0 for axis in (1, 2)):
            mask = mask[:, 0, 0]
        if mask.ndim != 2:
            self._refuse(
                where,
                f"its mask of the shape {tuple(mask.shape)} may differ from query to query; pass one of the shape "
                "(batch, tokens), or (batch, 1, 1, tokens)",
            )
        mask = mask.expand(query.shape[0], -1)
        return AttentionMask(kept_of_additive(mask) if mask.is_floating_point() else mask.bool())

    def _module(self, module: nn.Module, query: Tensor) -> Attention:
        layer = getattr(module, "layer_idx", None)
        layer = layer if isinstance(layer, int) else 0
        # Whole numbers also where torch.jit.trace has tensors of them.
        key = (layer, int(query.shape[1]), int(query.shape[3]), query.device)
        if key not in self._modules:
            # Neither the caller's random numbers nor what was run before decide those of the method.
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(layer)  # not the GPUs', which would stay seeded
                made = create_attention(self.config, num_heads=key[1], head_dim=key[2])
            self._modules[key] = made.to(query.device).requires_grad_(False)
        return self._modules[key]
