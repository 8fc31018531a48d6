"""The required attention span (Tay et al. 2021, Long Range Arena): the mean distance between a token and those that it
attends to.

Shapes: B rows, H heads, N tokens.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from nystromformer.attention import Attention, AttentionMask, NystromAttention, create_attention
from nystromformer.benchmark.findings import Findings, Record
from nystromformer.benchmark.questions import OUT, Out, count, flag
from nystromformer.command_line.flag_groups import with_flag_groups
from nystromformer.command_line.flags import DatasetFolder, DeviceName
from nystromformer.errors import UserError
from nystromformer.files.paths import experiment_folder
from nystromformer.model.layers import Layer
from nystromformer.tables import markdown, show
from nystromformer.tasks.experiment.folder import open_experiment
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.validation import load_checkpoint, open_scoring
from nystromformer.training import choose_device
from nystromformer.training.trainable import to_device

logger = logging.getLogger(__name__)


def mean_distance(weights_HNN: Tensor) -> float:
    """Mean over heads and queries of Σ |w| · distance / Σ |w|."""
    size = weights_HNN.abs()
    places = torch.arange(size.shape[-1], device=size.device)
    distance = (places[:, None] - places).abs().to(size.dtype)
    return float(((size * distance).sum(-1) / size.sum(-1).clamp(min=torch.finfo(size.dtype).tiny)).mean())


@torch.no_grad()
def spans_of_rows(core: Attention, q: Tensor, k: Tensor, mask: AttentionMask | None, layer: int) -> Iterator[Record]:
    """Of each row of a batch, q and k (B, H, N, D), in one layer, by its valid tokens alone: their number `tokens`; the
    `span`, mean over heads and queries, in tokens, with the weights' absolute values; the share of these that
    `negative` weights have; the span of exact `softmax` with the same queries and keys; and the span of weights that
    are all `even`.

    Raises:
        ValueError: a method that has no weights.
    """
    softmax = create_attention("softmax", num_heads=q.shape[1], head_dim=q.shape[3])
    for row in range(len(q)):
        keep_N = slice(None) if mask is None else mask.keep_BN[row]
        own_q, own_k = (x[row : row + 1, :, keep_N].float() for x in (q, k))
        own_k = own_q if core.needs.shared_query_key else own_k
        count = own_q.shape[2]
        if not count:
            continue
        own_mask = None
        if mask is not None and mask.global_BN is not None:
            marks_1N = mask.global_BN[row : row + 1, keep_N]
            own_mask = AttentionMask(torch.ones_like(marks_1N), marks_1N)
        # Many times as fast.
        if isinstance(core, NystromAttention) and own_mask is None and count > core.config.num_landmarks:
            factors = core.factors(own_q, own_k)
            weights = (factors.queries_BHNM @ factors.inverse_BHMM @ factors.keys_BHMN)[0]
        else:
            weights = core.weights(own_q, own_k, own_mask, queries=range(count))[0]
        exact = softmax.weights(own_q, own_k, None, queries=range(count))[0]
        yield {
            "layer": layer,
            "tokens": count,
            "span": mean_distance(weights),
            "negative": float(-weights.clamp(max=0).sum() / weights.abs().sum()),
            "softmax": mean_distance(exact),
            "even": (count**2 - 1) / (3 * count),
        }


def summarise(name: str, attention: str, found: Sequence[Record]) -> Record:
    """What a model's rows amount to: means over the rows, and of each layer."""
    table = pd.DataFrame(found)
    layers = table.groupby("layer")
    # A row's layers follow each other in batches, alike in each layer: so the same row is at the same place.
    spans = table.span.groupby(layers.cumcount()).mean()
    means = table[["tokens", "even", "span", "softmax", "negative"]].mean().to_dict()
    error = float(spans.sem()) if len(spans) > 1 else None
    own = layers[["span", "softmax", "negative"]].mean().to_dict("records")
    return {"name": name, "attention": attention, "rows": len(spans), **means, "span_error": error, "layers": own}


@dataclass(frozen=True)
class Span:
    """Pretrained models."""

    models: list[Path] = flag(
        [],
        "Folder of a pretrained experiment, looked at on --dataset; may be given several times.",
        name="model",
        parser=experiment_folder,
        metavar="DIRECTORY",
    )
    rows: int = count(1000, "Rows of validation data, drawn once and for all.")


@with_flag_groups
def span(settings: Span, out: Out = OUT, dataset: DatasetFolder = None, device: DeviceName = "auto") -> None:
    """How far pretrained models attend: the mean distance to attended tokens."""
    if not settings.models:
        raise UserError("expected at least one --model: the pretrained models to measure")
    records, chosen = [], choose_device(device, mixed_precision=False)
    for each in settings.models:
        experiment = open_experiment(each)
        opened = open_scoring(experiment, dataset, chosen, "last")
        name, seen = each.resolve().name, list[Record]()

        def see(layer: int, core: Attention, arguments: tuple[Any, ...], seen: list[Record] = seen) -> None:
            q, k, _, mask = arguments
            seen += spans_of_rows(core, q, k, mask, layer)

        model, _ = load_checkpoint(opened, opened.checkpoints[0])
        for index, layer in enumerate(layer for layer in model.encoder.layers if isinstance(layer, Layer)):
            layer.attention.core.register_forward_pre_hook(partial(see, index))
        preparation = RowPreparation(opened.dataset, opened.config)
        try:
            with torch.no_grad(), chosen.autocast():
                for batch in ValidationBatches(opened.dataset.validation, preparation, settings.rows):
                    moved = to_device(batch, chosen.device)
                    model.encoder(moved["tokens_BN"], moved.get("mask_BN"), moved.get("types_BN"))
        except ValueError as error:
            raise UserError(f"{name}: {error}") from None
        attention = ", ".join(dict.fromkeys(layer.name for layer in experiment.config.model.attentions))
        records.append(summarise(name, attention, seen))
        logger.info("%s measured", name)
    found = Findings.begin("span", settings, out)
    found.records += records
    show(found.publish(out / "span.json"))


def blocks(found: Findings) -> list[str]:
    """A row for each model."""
    header = ["model", "attention", "rows", "tokens of a row", "span", "softmax's, same Q and K", "of all alike"]
    lines = []
    for each in found.records:
        span = f"{each['span']:.1f}" + ("" if each["span_error"] is None else f" ± {each['span_error']:.1f}")
        figures = [str(each["rows"]), f"{each['tokens']:.0f}", span, f"{each['softmax']:.1f}", f"{each['even']:.1f}"]
        lines.append([each["name"], each["attention"], *figures, f"{100 * each['negative']:.1f}"])
    return [
        "How far attention reaches",
        "The mean distance, in tokens, between a token and those that it attends to, weighted by the absolute values "
        "of the weights, each query's divided by their sum; means over queries, heads, layers and rows of validation "
        "data, ± the standard error over rows. Of all alike: the span where each token attends to all of its row "
        "alike. The convolution is left out.",
        markdown([*header, "negative weight, %"], lines),
    ]
