"""Which tokens a prediction goes by: what its pooled vector attended to, and where its score is steep.

Shapes: B rows, N tokens, L layers, H heads, E width, C classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask
from nystromformer.model.encoder import Encoder
from nystromformer.model.finetuning import ClassificationModel
from nystromformer.model.layers import Layer


@dataclass(frozen=True)
class Explanation:
    """Of each row; zero at masked positions."""

    scores_BC: Tensor
    """Of the classes, or values."""
    classes_B: Tensor
    """Which score is explained."""
    attention_BLN: Tensor
    """The weight that each token has in what is pooled, in each layer, mean over the heads: of pooling "first" in the
    first token's attention, of "mean" in that of all valid tokens. Weights of an approximated softmax may be negative.
    """
    steepness_BN: Tensor
    """Gradient x input: how much of the score's slope stands at each token's embedding; negative against the class."""


def explain(
    model: ClassificationModel,
    tokens_BN: Tensor,
    mask: Tensor | AttentionMask | None = None,
    types_BN: Tensor | None = None,
    classes_B: Tensor | None = None,
    class_scores: Callable[[Tensor], Tensor] | None = None,
) -> Explanation:
    """Explain predictions, in the time and memory of a few training steps on the rows.

    Args:
        model: in evaluation mode.
        tokens_BN, mask, types_BN: as for the model.
        classes_B: of which class the score is explained, int64; None: each row's highest.
        class_scores: from the model's scores (B, any number) to those of the classes (B, C); None: they are these.

    Raises:
        ValueError: a model in training mode, whose dropout would be explained; or an attention that has no weights.
    """
    if model.training:
        raise ValueError("expected a model in evaluation mode: call model.eval() first")
    shared = AttentionMask(mask) if isinstance(mask, Tensor) else mask
    with torch.enable_grad(), _watched(model.encoder) as seen:
        scores_BC = model(tokens_BN, shared, types_BN).float()
        scores_BC = scores_BC if class_scores is None else class_scores(scores_BC)
    chosen_B = scores_BC.argmax(-1) if classes_B is None else classes_B
    (gradient_BNE,) = torch.autograd.grad(scores_BC.gather(1, chosen_B[:, None]).sum(), seen.embedded)
    steepness_BN = (gradient_BNE * seen.embedded.detach()).sum(-1).float()
    attention_BLN = torch.stack([_pooled(call, model.encoder.pooling) for call in seen.calls], dim=1)
    if shared is not None:
        steepness_BN = steepness_BN.masked_fill(~shared.keep_BN, 0.0)
        attention_BLN = attention_BLN.masked_fill(~shared.keep_BN[:, None], 0.0)
    return Explanation(scores_BC.detach(), chosen_B, attention_BLN, steepness_BN)


@dataclass(frozen=True)
class _Call:
    core: Attention
    q_BHND: Tensor
    k_BHND: Tensor
    mask: AttentionMask | None


class _Seen:
    """What a forward showed."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.embedded = torch.empty(0)

    def attended(self, core: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(core, Attention)
        q_BHND, k_BHND, _, mask = args
        own_BHND = q_BHND.detach()
        # What has one projection for both is asked with one.
        self.calls.append(_Call(core, own_BHND, own_BHND if k_BHND is q_BHND else k_BHND.detach(), mask))

    def embedding(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        self.embedded = out.detach().requires_grad_()
        return self.embedded


@contextmanager
def _watched(encoder: Encoder) -> Iterator[_Seen]:
    seen = _Seen()
    handles = [encoder.embeddings.register_forward_hook(seen.embedding)]
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        handles.append(layer.attention.core.register_forward_pre_hook(seen.attended))
    try:
        yield seen
    finally:
        # Before the backward, in which reversible layers are computed again.
        for handle in handles:
            handle.remove()


def _pooled(call: _Call, pooling: str) -> Tensor:
    """(B, N): what the pooled tokens attend to, mean over the heads."""
    if pooling == "first":
        weights_BHN = call.core.weights(call.q_BHND, call.k_BHND, call.mask, queries=[0])[:, :, 0]
    else:
        weights_BHN = call.core.mean_weights(call.q_BHND, call.k_BHND, call.mask)
    return weights_BHN.float().mean(1)
