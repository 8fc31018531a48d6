"""Training a model of transformers with a registered attention towards the softmax that it was trained with."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from nystromformer.interop.conversion import Batch, Distillation, Hidden, warm_up_steps
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
    layers = tuple(check(model, first).swapped)
    if "softmax" not in REGISTERED:
        register("softmax")
    source = copy.deepcopy(model).eval()  # type: ignore[no-untyped-call]
    source.set_attn_implementation("softmax")
    embeddings = getattr(model.base_model, "embeddings", None)
    if embeddings is None:
        with suppress(NotImplementedError):  # of models of sounds
            embeddings = model.get_input_embeddings()
    work = Distillation("layers", model, source, layers, embeddings, _hidden)
    rest = chain(() if first is None else (first,), given)
    with evaluating(model):
        of_layers = _train(work, steps, learning_rate, rest)
        of_hidden = _train(replace(work, stage="hidden"), end_to_end_steps, end_to_end_learning_rate, rest)
    model.zero_grad()  # embeddings have some, too, which nothing took
    return Conversion(of_layers, of_hidden)


def _train(work: Distillation, steps: int, rate: float, batches: Iterator[Batch]) -> tuple[float, ...]:
    parameters, warm_up = work.trained, warm_up_steps(steps)
    optimizer = AdamW(parameters, lr=rate, weight_decay=0.0)
    losses = []
    for step in range(steps):
        if (batch := next(batches, None)) is None:
            raise ValueError(f"expected a batch for each step, found none for step {step + 1} of {steps}")
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))
        loss = work.distance(batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
    return tuple(losses)


def _hidden(model: PreTrainedModel, batch: Batch) -> Hidden:
    states = model(**batch, output_hidden_states=True).hidden_states[1:]
    length, mask = states[0].shape[1], batch.get("attention_mask")
    if mask is not None and mask.shape[1] != length:  # of a sound's samples, of which a frame has many
        mask = model.base_model._get_feature_vector_attention_mask(length, mask)  # type: ignore[operator]
    return states, None if mask is None else mask != 0
