"""Which tokens a prediction goes by: what its pooled vector attended to, and where its score is steep.

Shapes: B rows, N tokens, L layers, H heads, E width, C classes, I instances of one row or several.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask
from nystromformer.model.encoder import Encoder, first_of_rows
from nystromformer.model.finetuning import ClassificationModel
from nystromformer.model.layers import Layer


@dataclass(frozen=True)
class Explanation:
    """Of each instance, which is a row where none has several; and of each row's tokens, zero at masked positions."""

    scores_IC: Tensor
    """Of the classes, or values."""
    classes_I: Tensor
    """Which score is explained."""
    attention_BLN: Tensor
    """The weight that each token has in what is pooled, in each layer, mean over the heads: of pooling "first" in the
    first token's attention, of "mean" in that of all valid tokens. Weights of an approximated softmax may be negative.
    Of several rows that belong together each has its share.
    """
    steepness_BN: Tensor
    """Gradient x input: how much of the score's slope stands at each token's embedding; negative against the class."""


def explain(
    model: ClassificationModel,
    tokens_BN: Tensor,
    mask_BN: Tensor | None = None,
    types_BN: Tensor | None = None,
    rows_I: Tensor | None = None,
    classes_I: Tensor | None = None,
    class_scores: Callable[[Tensor], Tensor] | None = None,
    rows_at_a_time: int | None = None,
) -> Explanation:
    """Explain predictions, in the time and memory of a few training steps on the rows.

    Args:
        model: in evaluation mode.
        tokens_BN, mask_BN, types_BN, rows_I: as for the model.
        classes_I: of which class the score is explained, int64; None: each instance's highest.
        class_scores: from the model's scores (I, any number) to those of the classes (I, C); None: they are these.
        rows_at_a_time: whose activations are held; None: of all.

    Raises:
        ValueError: a model in training mode, whose dropout would be explained; or an attention that has no weights.
    """
    if model.training:
        raise ValueError("expected a model in evaluation mode: call model.eval() first")
    size = rows_at_a_time or len(tokens_BN)
    given = (tokens_BN, mask_BN, types_BN)
    pieces = list(zip(*(repeat(None) if each is None else torch.split(each, size) for each in given), strict=False))
    # A score depends on a row by its pooled vector alone: its slope there is what each piece is differentiated with.
    with torch.no_grad():
        pooled_BE = torch.cat([model.pooled(*piece) for piece in pieces]).requires_grad_()
    with torch.enable_grad():
        scores_IC = model.logits(pooled_BE, rows_I).float()
        scores_IC = scores_IC if class_scores is None else class_scores(scores_IC)
        chosen_I = scores_IC.argmax(-1) if classes_I is None else classes_I
        (slope_BE,) = torch.autograd.grad(scores_IC.gather(1, chosen_I[:, None]).sum(), pooled_BE)
    attention, steepness = [], []
    for piece, slope in zip(pieces, torch.split(slope_BE, size), strict=True):
        with torch.enable_grad(), _watched(model.encoder) as (embedded, calls):
            found_BE = model.pooled(*piece)
        (gradient_BNE,) = torch.autograd.grad(found_BE, embedded, slope)
        steepness.append((gradient_BNE * embedded[0].detach()).sum(-1).float())
        attention.append(torch.stack([_pooled(call, model.encoder.pooling) for call in calls], dim=1))
    attention_BLN, steepness_BN = torch.cat(attention), torch.cat(steepness)
    if rows_I is not None:
        attention_BLN = attention_BLN / rows_I.repeat_interleave(rows_I)[:, None, None]
    if mask_BN is not None:
        steepness_BN = steepness_BN.masked_fill(~mask_BN, 0.0)
        attention_BLN = attention_BLN.masked_fill(~mask_BN[:, None], 0.0)
    return Explanation(scores_IC.detach(), chosen_I, attention_BLN, steepness_BN)


class _Call(NamedTuple):
    core: Attention
    q_BHND: Tensor
    k_BHND: Tensor
    mask: AttentionMask | None


@contextmanager
def _watched(encoder: Encoder) -> Iterator[tuple[list[Tensor], list[_Call]]]:
    """What a forward embeds, one tensor, from which the rest is differentiated; and what its attentions are given."""
    embedded: list[Tensor] = []
    calls: list[_Call] = []

    def embedding(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[0]

    def attended(core: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(core, Attention)
        q_BHND, k_BHND, _, mask = args
        own_BHND = q_BHND.detach()
        # What has one projection for both is asked with one.
        calls.append(_Call(core, own_BHND, own_BHND if k_BHND is q_BHND else k_BHND.detach(), mask))

    handles = [encoder.embeddings.register_forward_hook(embedding)]
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        handles.append(layer.attention.core.register_forward_pre_hook(attended))
    try:
        yield embedded, calls
    finally:
        # Before the backward, in which reversible layers are computed again.
        for handle in handles:
            handle.remove()


def _pooled(call: _Call, pooling: str) -> Tensor:
    """(B, N): what the pooled tokens attend to, mean over the heads."""
    if pooling == "first":
        first_B1 = first_of_rows(call.q_BHND, call.mask)
        queries, which_B1 = torch.unique(first_B1, return_inverse=True)
        weights_BHQN = call.core.weights(call.q_BHND, call.k_BHND, call.mask, queries=queries.tolist())
        weights_BHN = weights_BHQN[torch.arange(len(which_B1)), :, which_B1[:, 0]]
    else:
        weights_BHN = call.core.mean_weights(call.q_BHND, call.k_BHND, call.mask)
    return weights_BHN.float().mean(1)
