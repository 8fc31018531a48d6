"""What the attentions of a pretrained checkpoint see on masked validation rows.

Shapes: B rows, N tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.model.layers import Layer
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.validation import OpenedScoring, load_checkpoint


def watch_attention(
    opened: OpenedScoring, rows: int, see: Callable[[int, Any, tuple[Any, ...]], None]
) -> Iterator[dict[str, Tensor]]:
    """Run the checkpoint's encoder over masked validation rows, drawn once and for all; gives each batch behind it.
    `see(layer, attention, arguments)` is called before each attention computes.
    """

    def hook(layer: int, core: nn.Module, arguments: tuple[Any, ...]) -> None:
        see(layer, core, arguments)

    model, _ = load_checkpoint(opened, opened.checkpoints[0])
    for index, layer in enumerate(layer for layer in model.encoder.layers if isinstance(layer, Layer)):
        layer.attention.core.register_forward_pre_hook(partial(hook, index))
    preparation = RowPreparation(opened.dataset, opened.config)
    with torch.no_grad(), opened.device.autocast():
        for batch in ValidationBatches(opened.dataset.validation, preparation, rows):
            moved = {name: tensor.to(opened.device.device) for name, tensor in batch.items()}
            model.encoder(moved["tokens_BN"], moved.get("mask_BN"), moved.get("types_BN"))
            yield moved
