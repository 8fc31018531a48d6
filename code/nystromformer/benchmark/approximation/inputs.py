"""Queries, keys and values: those of each layer of a checkpoint over real text, and random ones.

Shapes: B rows, H heads, N tokens, D head dim.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from nystromformer.attention import AttentionMask
from nystromformer.model import PretrainingModel
from nystromformer.model.layers import Layer
from nystromformer.tasks.experiment.door import OpenedScoring
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches

RANDOM = "random"
"""The name of inputs that are standard normal."""


@dataclass(frozen=True)
class Inputs:
    """What one attention sees."""

    name: str
    q: Tensor
    k: Tensor
    v: Tensor
    mask: AttentionMask | None

    def double(self) -> "Inputs":
        """The same in float64."""
        return Inputs(self.name, self.q.double(), self.k.double(), self.v.double(), self.mask)

    def rows(self) -> list["Inputs"]:
        """One for each row, so that its N x N weights fit."""
        found = []
        for row in range(len(self.q)):
            part = slice(row, row + 1)
            mask = None if self.mask is None else AttentionMask(self.mask.keep_BN[part])
            found.append(Inputs(self.name, self.q[part], self.k[part], self.v[part], mask))
        return found


def captured(opened: OpenedScoring, model: PretrainingModel, rows: int) -> list[Inputs]:
    """What the attentions of all layers see on masked validation rows, drawn once and for all."""
    preparation = RowPreparation(opened.dataset, opened.config)
    batches = ValidationBatches(opened.dataset.validation, preparation, rows)
    seen: list[list[tuple[Tensor, ...]]] = []
    keeps: list[Tensor] = []
    handles = []
    layers = [layer for layer in model.encoder.layers if isinstance(layer, Layer)]
    for layer in layers:
        mine: list[tuple[Tensor, ...]] = []
        seen.append(mine)

        def remember(module: object, args: tuple[Tensor, ...], mine: list[tuple[Tensor, ...]] = mine) -> None:
            mine.append(tuple(x.detach().float() for x in args[:3]))

        handles.append(layer.attention.core.register_forward_pre_hook(remember))
    device = opened.device.device
    try:
        with torch.no_grad(), opened.device.autocast():
            for number in range(len(batches)):
                batch = {name: tensor.to(device) for name, tensor in batches[number].items()}
                tokens_BN = batch["tokens_BN"]
                keep_BN = batch.get("mask_BN", torch.ones_like(tokens_BN, dtype=torch.bool))
                keeps.append(keep_BN)
                model.encoder(tokens_BN, batch.get("mask_BN"), batch.get("types_BN"))
    finally:
        for handle in handles:
            handle.remove()
    keep_BN = torch.cat(keeps)
    mask = None if keep_BN.all() else AttentionMask(keep_BN)
    found = []
    for index, mine in enumerate(seen):
        q, k, v = (torch.cat(batches) for batches in zip(*mine, strict=True))
        found.append(Inputs(f"layer {index}", q, k, v, mask))
    return found


def random_like(inputs: Inputs) -> Inputs:
    """Standard normal ones of the same shape, no token masked."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(inputs.q.shape, generator=generator).to(inputs.q.device) for _ in range(3))
    return Inputs(RANDOM, q, k, v, None)
