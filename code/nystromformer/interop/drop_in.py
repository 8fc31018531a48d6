"""Attentions of this project in the models of transformers: `register()`, then `attn_implementation="nystrom"`.

Shapes: B batch, H heads, N tokens, D head dim.
"""

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nystromformer.attention import Attention, AttentionMask, SoftmaxAttention, create_attention
from nystromformer.attention.swapped import (
    AttentionDropout,
    check_attention_dropout,
    kept_of_additive,
    learned_parts,
    own_keys_refused,
)
from nystromformer.config.attention import ATTENTIONS, AttentionConfig, SoftmaxConfig, attention_config

__all__ = ["check", "register"]

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


REGISTERED: dict[str, DropIn] = {}
"""All that is registered now, by its name."""


def register(
    attention: str | AttentionConfig | None = None,
    *,
    name: str | None = None,
    attention_dropout: AttentionDropout = "refuse",
    **parameters: object,
) -> tuple[str, ...]:
    """Register attentions with transformers, for every bidirectional model there that goes through its interface:
    `AutoModel.from_pretrained(..., attn_implementation="nystrom")`.

    Nothing is added to a model. What is no bidirectional self-attention over one mask for each token is refused in its
    first forward pass. Layers with a sliding window keep their own attention. A model that does not use the interface
    takes the name and keeps its own attention: `check` refuses it.

    Args:
        attention: which one, by its name or as a config; None: all that can be, each by its own name.
        name: by which transformers is to find it (Nyström attention, if `attention` is None); several may have the same
            attention with other parameters. None: the attention's own.
        attention_dropout: what happens where a model in training asks for dropout of the weights of pairs of tokens,
            which no method here forms. "refuse": an error that says how to turn it off; "leave_out": it is left out.
        parameters: the attention's, such as `num_landmarks=64`; where `attention` is None, Nyström attention's.

    Returns:
        The names. Left out are attentions with learned parts, which no checkpoint of softmax has, and those that do not
        take a softmax's queries and keys.

    Raises:
        ValueError: an unknown attention or one that has to be left out, impossible parameters, a name of transformers.

    >>> register("nystrom", name="nystrom-256", num_landmarks=256)
    ('nystrom-256',)
    """
    check_attention_dropout(attention_dropout)
    if attention is None and name is None:
        configs = [attention_config(each, **(parameters if each == "nystrom" else {})) for each in ATTENTIONS]
    else:
        configs = [attention_config(attention or "nystrom", **parameters)]
    made: dict[str, AttentionConfig] = {}
    for config in configs:
        reason = own_keys_refused(config) or learned_parts(config)
        if reason is None:
            made[name or config.name] = config
        elif len(configs) == 1 or config.name == "nystrom":
            raise ValueError(f"{config.name} cannot replace a trained softmax: {reason}")
    for each, config in made.items():
        if each not in REGISTERED and each in ALL_ATTENTION_FUNCTIONS:
            raise ValueError(f'transformers has an attention called "{each}" already: choose another name')
        REGISTERED[each] = drop_in = DropIn(each, config, attention_dropout)
        AttentionInterface.register(each, drop_in.attend)
        AttentionMaskInterface.register(each, drop_in.mask)
    return tuple(made)


def check(model: nn.Module, batch: Mapping[str, Any] | Tensor) -> dict[str, float]:
    """Which layers of a model run a registered attention, and how far each is from exact softmax of the very queries,
    keys and values that it got: ‖approximation - softmax‖ / ‖softmax‖, over all heads, valid tokens and calls.

    One forward without gradients. Those of a layer come from the approximations of the layers before it. Exact softmax
    is computed beside each layer, in float32, at O(N²) time.

    Args:
        model: of transformers, loaded with a registered `attn_implementation`; in evaluation meanwhile.
        batch: the model's inputs by their names, or the first one alone.

    Raises:
        ValueError: the model calls no registered attention: transformers takes any registered name for any model and
            does not look whether the model goes through its interface; what a layer refuses.
    """
    names = {module: name for name, module in model.named_modules()}
    squares: dict[str, Tensor] = {}

    def compare(call: Call) -> None:
        if call.module in names:  # another model may run at the same time
            layer = names[call.module]
            squares[layer] = squares.get(layer, torch.zeros(())) + _squares(call)

    training = [module for module in model.modules() if module.training]
    observed = list(REGISTERED.values())
    for drop_in in observed:
        drop_in.observers.append(compare)
    try:
        with torch.no_grad():
            model.eval()
            _ = model(batch) if isinstance(batch, Tensor) else model(**batch)
    finally:
        for drop_in in observed:
            drop_in.observers.remove(compare)
        for module in training:
            module.training = True
    if not squares:
        chosen = getattr(getattr(model, "config", None), "_attn_implementation", None)
        raise ValueError(
            f'{type(model).__name__} with attn_implementation="{chosen}" calls no registered attention '
            f"({', '.join(REGISTERED) or 'none: call register() before'}): it was loaded with another name, all its "
            "layers have sliding windows, or its code does not go through transformers' AttentionInterface"
        )
    least = torch.finfo(torch.float64).tiny
    return {layer: float((x[0] / x[1].clamp(min=least)).sqrt()) for layer, x in squares.items()}


def _squares(call: Call) -> Tensor:
    """Squared norms of the difference and of softmax's output, (2,) in float64, on the CPU."""
    q, k, v, out = (x.float() for x in (call.q_BHND, call.k_BHND, call.v_BHND, call.out_BHND))
    with torch.autocast(q.device.type, enabled=False):
        exact = SoftmaxAttention(SoftmaxConfig(), q.shape[1], q.shape[3])(q, k, v, call.mask)
        if call.mask is not None:
            out = out * call.mask.multiplier(out.dtype)
        return torch.stack([(x.double() ** 2).sum() for x in (out - exact, exact)]).cpu()
