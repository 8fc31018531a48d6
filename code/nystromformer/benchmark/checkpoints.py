"""A pretrained checkpoint, and what its attentions see on masked validation rows.

Shapes: B rows, N tokens.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.errors import UserError
from nystromformer.model.layers import Layer
from nystromformer.tasks.experiment.folder import Experiment
from nystromformer.tasks.pretraining.batches import RowPreparation, ValidationBatches
from nystromformer.tasks.pretraining.validation import OpenedScoring, load_checkpoint, open_scoring
from nystromformer.training import Device


def open_one_checkpoint(experiment: Experiment, dataset: Path | None, device: Device, checkpoint: str) -> OpenedScoring:
    """As `open_scoring`, with one checkpoint.

    Raises:
        UserError: as `open_scoring`; all checkpoints are asked for.
    """
    if checkpoint == "all":
        raise UserError("--checkpoint: expected last or an epoch's number, found 'all'")
    return open_scoring(experiment, dataset, device, checkpoint)


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
