"""Which tokens a prediction goes by: what its pooled vector attended to, and where its score is steep.

Shapes: B rows, N tokens, L layers, H heads, E width, C classes, I instances of one row or several.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
        rows_at_a_time: whose activations are held; None: of all. Fewer are computed twice.

    Raises:
        ValueError: a model in training mode, whose dropout would be explained; or an attention that has no weights.
    """
    if model.training:
        raise ValueError("expected a model in evaluation mode: call model.eval() first")
    size = rows_at_a_time or len(tokens_BN)
    pieces = [slice(start, start + size) for start in range(0, len(tokens_BN), size)]
    # A score depends on a row by its pooled vector alone: its slope there is what each piece is differentiated with.
    whole = _forward(model, tokens_BN, mask_BN, types_BN, pieces[0]) if len(pieces) == 1 else None
    if whole is not None:
        pooled_BE = whole.pooled_BE
    else:
        with torch.no_grad():
            pooled_BE = torch.cat([model.pooled(*_rows(piece, tokens_BN, mask_BN, types_BN)) for piece in pieces])
    leaf_BE = pooled_BE.detach().requires_grad_()
    with torch.enable_grad():
        scores_IC = model.logits(leaf_BE, rows_I).float()
        scores_IC = scores_IC if class_scores is None else class_scores(scores_IC)
        chosen_I = scores_IC.argmax(-1) if classes_I is None else classes_I
        (slope_BE,) = torch.autograd.grad(scores_IC.gather(1, chosen_I[:, None]).sum(), leaf_BE)
    attention, steepness = [], []
    for piece in pieces:
        seen = whole or _forward(model, tokens_BN, mask_BN, types_BN, piece)
        (gradient_BNE,) = torch.autograd.grad(seen.pooled_BE, seen.embedded, slope_BE[piece])
        steepness.append((gradient_BNE * seen.embedded.detach()).sum(-1).float())
        attention.append(torch.stack([_pooled(call, model.encoder.pooling) for call in seen.calls], dim=1))
    attention_BLN, steepness_BN = torch.cat(attention), torch.cat(steepness)
    if rows_I is not None:
        attention_BLN = attention_BLN / rows_I.repeat_interleave(rows_I)[:, None, None]
    if mask_BN is not None:
        steepness_BN = steepness_BN.masked_fill(~mask_BN, 0.0)
        attention_BLN = attention_BLN.masked_fill(~mask_BN[:, None], 0.0)
    return Explanation(scores_IC.detach(), chosen_I, attention_BLN, steepness_BN)


@dataclass(frozen=True)
class _Call:
    core: Attention
    q_BHND: Tensor
    k_BHND: Tensor
    mask: AttentionMask | None


class _Seen:
    """What a forward showed."""

    def __init__(self) -> None:
        self.pooled_BE = torch.empty(0)
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


def _forward(
    model: ClassificationModel, tokens_BN: Tensor, mask_BN: Tensor | None, types_BN: Tensor | None, piece: slice
) -> _Seen:
    with torch.enable_grad(), _watched(model.encoder) as seen:
        seen.pooled_BE = model.pooled(*_rows(piece, tokens_BN, mask_BN, types_BN))
    return seen


def _rows(
    piece: slice, tokens_BN: Tensor, mask_BN: Tensor | None, types_BN: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    mask, types = (None if each is None else each[piece] for each in (mask_BN, types_BN))
    return tokens_BN[piece], mask, types


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
        first_B1 = first_of_rows(call.q_BHND, call.mask)
        queries, which_B1 = torch.unique(first_B1, return_inverse=True)
        weights_BHQN = call.core.weights(call.q_BHND, call.k_BHND, call.mask, queries=queries.tolist())
        weights_BHN = weights_BHQN[torch.arange(len(which_B1)), :, which_B1[:, 0]]
    else:
        weights_BHN = call.core.mean_weights(call.q_BHND, call.k_BHND, call.mask)
    return weights_BHN.float().mean(1)
