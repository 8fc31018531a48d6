"""Queries, keys and values: those of each layer of a checkpoint over real text, and random ones.

Shapes: B rows, H heads, N tokens, D head dim.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nystromformer.attention import Attention, AttentionMask
from nystromformer.benchmark.checkpoints import encode_validation_rows, watch_attention
from nystromformer.model import PretrainingModel
from nystromformer.tasks.experiment.opening import OpenedScoring

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
        keeps = [None] * len(self.q) if self.mask is None else torch.split(self.mask.keep_BN, 1)
        masks = (None if keep is None else AttentionMask(keep) for keep in keeps)
        parts = zip(*(torch.split(x, 1) for x in (self.q, self.k, self.v)), masks, strict=True)
        return [Inputs(self.name, q, k, v, mask) for q, k, v, mask in parts]


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
