"""Training a model of transformers with a registered attention towards the softmax that it was trained with."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from nystromformer.interop.conversion import WARM_UP, attention_loss, hidden_loss, recorded
from nystromformer.interop.drop_in.names import REGISTERED, register
from nystromformer.interop.drop_in.report import check, evaluating


@dataclass(frozen=True)
class Conversion:
    """What `convert` did."""

    layers: tuple[float, ...]
    """Of each step of the first stage: ‖found − wanted‖² / ‖wanted‖² of the attentions' outputs, their mean."""
    hidden: tuple[float, ...]
    """Of each step of the second stage: the same of the hidden states."""


def convert(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    *,
    steps: int,
    end_to_end_steps: int = 0,
    learning_rate: float = 2e-4,
    end_to_end_learning_rate: float = 3e-5,
) -> Conversion:
    """Train a model that runs a registered attention until it computes what its weights computed with softmax.

    Two stages, as of `run_export.py convert`: each layer's attention towards the output of softmax, given the same
    input (LoLCATs, arXiv 2410.10254), which changes the layers' projections alone; then all but the embeddings towards
    the hidden states. A copy of the model with softmax is the source. The model is changed in place; it is in
    evaluation meanwhile, without dropout.

    Args:
        model: of transformers, loaded with a registered `attn_implementation`.
        batches: inputs of the model by their names, a batch a step; those of the first stage come first.
        steps: of the first stage; 0: none.
        end_to_end_steps: of the second.
        learning_rate, end_to_end_learning_rate: the peak of each stage's; it rises over the first 5 % of the steps and
            falls to zero linearly.

    Returns:
        The losses.

    Raises:
        ValueError: the model calls no registered attention (as `check`); fewer batches than steps.
    """
    given = iter(batches)
    first = next(given, None)
    if first is None:
        raise ValueError("expected batches, found none")
    layers = tuple(check(model, first).swapped)
    if "softmax" not in REGISTERED:
        register("softmax")
    source = copy.deepcopy(model).eval().requires_grad_(False)  # type: ignore[no-untyped-call]
    source.set_attn_implementation("softmax")
    rest = _counted(first, given, steps + end_to_end_steps)
    with evaluating(model):
        projections = [p for name in layers for p in model.get_submodule(name).parameters()]
        of_layers = _trained(
            projections, learning_rate, steps, rest, lambda batch: _layer_loss(model, source, layers, batch)
        )
        base = model.base_model
        embeddings = getattr(base, "embeddings", None)
        if embeddings is None:
            with suppress(NotImplementedError):  # of models of sounds
                embeddings = model.get_input_embeddings()
        kept = set() if embeddings is None else set(embeddings.parameters())
        others = [p for p in model.parameters() if p not in kept]
        of_hidden = _trained(
            others, end_to_end_learning_rate, end_to_end_steps, rest, lambda batch: _hidden_loss(model, source, batch)
        )
    model.zero_grad()  # embeddings have some, too, which nothing took
    return Conversion(of_layers, of_hidden)


def _counted(first: Mapping[str, Tensor], rest: Iterator[Mapping[str, Tensor]], count: int) -> Iterator[Any]:
    yield first
    for number in range(1, count):
        batch = next(rest, None)
        if batch is None:
            raise ValueError(f"expected a batch for each of {count} steps, found {number}")
        yield batch


def _trained(
    parameters: list[nn.Parameter],
    rate: float,
    steps: int,
    batches: Iterator[Mapping[str, Tensor]],
    loss_of: Callable[[Mapping[str, Tensor]], Tensor],
) -> tuple[float, ...]:
    optimizer = AdamW(parameters, lr=rate, weight_decay=0.0)
    warm_up = max(1, round(WARM_UP * steps))
    schedule = LambdaLR(optimizer, lambda step: min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up)))
    losses = []
    for _ in range(steps):
        loss = loss_of(next(batches))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return tuple(losses)


def _layer_loss(model: nn.Module, source: nn.Module, layers: tuple[str, ...], batch: Mapping[str, Tensor]) -> Tensor:
    with recorded(source, layers) as calls, torch.no_grad():
        source(**batch)
    return attention_loss(model, calls, _kept(model, batch, calls[0].output_BNE.shape[1]))


def _hidden_loss(model: nn.Module, source: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    with torch.no_grad():
        wanted = source(**batch, output_hidden_states=True).hidden_states[1:]
    found = model(**batch, output_hidden_states=True).hidden_states[1:]
    return hidden_loss(found, wanted, _kept(model, batch, found[0].shape[1]))


def _kept(model: nn.Module, batch: Mapping[str, Tensor], length: int) -> Tensor | None:
    """Bool (B, length), for the model's vectors."""
    mask = batch.get("attention_mask")
    if mask is not None and mask.shape[1] != length:  # of a sound's samples, of which a frame has many
        mask = model.base_model._get_feature_vector_attention_mask(length, mask)  # type: ignore[operator, union-attr]
    return None if mask is None else mask != 0
