"""A pretrained checkpoint, and what its attentions see on masked validation rows.

Shapes: B rows, H heads, N tokens, D head dim.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import Attention, AttentionMask
from nystromformer.errors import UserError
from nystromformer.model import Encoder, PretrainingModel
from nystromformer.model.layers import Layer
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.validation import OpenedScoring, open_scoring
from nystromformer.training import Device

RANDOM = "random"
"""The name of inputs that are standard normal."""


def open_one_checkpoint(experiment: Experiment, dataset: Path | None, device: Device, checkpoint: str) -> OpenedScoring:
    """As `open_scoring`, with one checkpoint.

    Raises:
        UserError: as `open_scoring`; all checkpoints are asked for.
    """
    if checkpoint == "all":
        raise UserError("--checkpoint: expected last or an epoch's number, found 'all'")
    return open_scoring(experiment, dataset, device, checkpoint)


def encode_validation_rows(opened: OpenedScoring, encoder: Encoder, rows: int) -> Iterator[dict[str, Tensor]]:
    """Run an encoder over masked validation rows, drawn once and for all; gives each batch behind it."""
    preparation = RowPreparation(opened.dataset, opened.config)
    for batch in ValidationBatches(opened.dataset.validation, preparation, rows):
        moved = {name: tensor.to(opened.device.device) for name, tensor in batch.items()}
        encoder(moved["tokens_BN"], moved.get("mask_BN"), moved.get("types_BN"))
        yield moved


@contextmanager
def watch_attention(encoder: Encoder, see: Callable[[int, Attention, tuple[Any, ...]], None]) -> Iterator[None]:
    """Within, `see(layer, attention, arguments)` is called before each attention computes."""

    def hook(layer: int, core: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(core, Attention)
        see(layer, core, arguments)

    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    handles = [
        layer.attention.core.register_forward_pre_hook(partial(hook, index)) for index, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Inputs:
    """What one attention sees."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: AttentionMask | None


def capture_inputs(opened: OpenedScoring, model: PretrainingModel, rows: int) -> list[Inputs]:
    """What the attentions of all layers see on masked validation rows, drawn once and for all."""
    seen: dict[int, list[tuple[Tensor, ...]]] = defaultdict(list)
    keeps: list[Tensor] = []

    def see(layer: int, core: Attention, arguments: tuple[Any, ...]) -> None:
        seen[layer].append(tuple(x.detach().float() for x in arguments[:3]))

    with torch.no_grad(), opened.device.autocast(), watch_attention(model.encoder, see):
        for batch in encode_validation_rows(opened, model.encoder, rows):
            keeps.append(batch.get("mask_BN", torch.ones_like(batch["tokens_BN"], dtype=torch.bool)))
    keep_BN = torch.cat(keeps)
    mask = None if keep_BN.all() else AttentionMask(keep_BN)
    joined = {layer: [torch.cat(parts) for parts in zip(*mine, strict=True)] for layer, mine in seen.items()}
    return [Inputs(f"layer {layer}", q, k, v, mask) for layer, (q, k, v) in sorted(joined.items())]


def draw_like(inputs: Inputs) -> Inputs:
    """Standard normal ones of the same shape, no token masked."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(inputs.q.shape, generator=generator).to(inputs.q.device) for _ in range(3))
    return Inputs(RANDOM, q, k, v, None)
