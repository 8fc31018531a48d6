"""Models that are measured: their batches and steps.

Shapes: B rows, N tokens, K masked positions.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from nystromformer.benchmark.timing import Work, peak_memory
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.model import PretrainingModel
from nystromformer.training.device import Device

PAD = 1
_MASK_PROB = 0.15


def step_memory(model: nn.Module, step: Work) -> float:
    """MiB at the peak of a step, weights and Adam's two moments included."""
    model.zero_grad(set_to_none=True)  # what a step makes anew is the step's
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20 + peak_memory(step)


def made_up_batch(vocab_size: int, length: int, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Random tokens, as many masked positions a row as in pretraining; labels for ours and for transformers'."""
    tokens_BN = torch.randint(5, vocab_size - 1, (rows, length))
    count = predictions_per_row(length, _MASK_PROB)
    positions_BK = torch.stack([torch.randperm(length)[:count].sort().values for _ in range(rows)])
    labels_BK = tokens_BN.gather(1, positions_BK)
    labels_BN = torch.full_like(tokens_BN, IGNORED_LABEL).scatter(1, positions_BK, labels_BK)
    batch = {"tokens_BN": tokens_BN, "positions_BK": positions_BK, "labels_BK": labels_BK, "labels_BN": labels_BN}
    return {name: tensor.to(device) for name, tensor in batch.items()}


def masked_lm_step(model: PretrainingModel, batch: Mapping[str, Tensor], device: Device) -> Work:
    """A step of ours on a batch."""

    def loss() -> Tensor:
        out = model(batch["tokens_BN"], batch["positions_BK"], labels_BK=batch["labels_BK"])
        assert out.mlm_sums is not None, "labels were given"
        return mean_loss(out.mlm_sums)

    return training_step(model, loss, device)


def mean_loss(sums: Tensor) -> Tensor:
    """Of `MaskedLMHead.sums`, (3,)."""
    mean: Tensor = sums[0] / sums[2].detach()
    return mean


def training_step(
    model: nn.Module, loss: Callable[[], Tensor], device: Device, optimizer: torch.optim.Optimizer | None = None
) -> Work:
    """Steps on what the loss is computed from: forward, backward, clipping, fused AdamW.

    Args:
        optimizer: that several steps of the model share; None: one of its own.
    """
    adamw = optimizer or new_optimizer(model)

    def step() -> None:
        adamw.zero_grad(set_to_none=True)
        with device.autocast():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()

    return step


def new_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Fused AdamW."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
