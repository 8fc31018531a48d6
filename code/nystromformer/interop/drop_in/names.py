"""The names by which transformers finds the attentions, and whether a model runs what was registered.

Shapes: B batch, H heads, N tokens, D head dim.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nystromformer.attention import SoftmaxAttention
from nystromformer.attention.swapped import (
    AttentionDropout,
    check_attention_dropout,
    learned_parts,
    own_keys_refused,
)
from nystromformer.config.attention import ATTENTIONS, AttentionConfig, SoftmaxConfig, attention_config
from nystromformer.interop.drop_in.calls import Call, DropIn

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
        name: by which transformers is to find it; None: the attention's own. Several names may have the same
            attention with other parameters. A name that is registered again means the new ones from then on.
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
    if attention is not None:
        configs = [attention_config(attention, **parameters)]
    elif name is None:
        configs = [attention_config(each, **(parameters if each == "nystrom" else {})) for each in ATTENTIONS]
    else:
        raise ValueError(
            f'name = "{name}" can name only one attention: say which, as in register("nystrom", name="{name}")'
        )
    made: dict[str, AttentionConfig] = {}
    for config in configs:
        reason = own_keys_refused(config) or learned_parts(config)
        if reason is None:
            made[name or config.name] = config
        elif attention is not None or config.name == "nystrom":
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
