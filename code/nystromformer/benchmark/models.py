"""The model that benchmarks of whole steps train, ours and transformers', its batches and its steps.

Shapes: B rows, N tokens, K masked positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.benchmark.timing import Work, peak_memory
from nystromformer.config import AttentionName, ModelConfig
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.errors import UserError
from nystromformer.model import PretrainingModel
from nystromformer.training.device import Device

_HEAD_DIM = 64
_MASK_PROB = 0.15
_PAD = 1


@dataclass(frozen=True)
class BertSmall:
    """Sizes of the model; by default the paper's BERT-small with RoBERTa's vocabulary.

    Raises:
        UserError: a width that heads do not divide.
    """

    vocab_size: int = 50265
    width: int = 512
    num_layers: int = 4
    num_landmarks: int = 64
    conv_kernel_size: int = 33
    dropout_prob: float = 0.1

    def __post_init__(self) -> None:
        if self.width % _HEAD_DIM:
            raise UserError(f"--width: expected a multiple of the heads' {_HEAD_DIM}, found {self.width}")

    def config(self, length: int, attention: AttentionName = "nystrom") -> ModelConfig:
        """Ours, for rows of up to `length` tokens; softmax has no convolution."""
        is_nystrom = attention == "nystrom"
        return ModelConfig(
            vocab_size=self.vocab_size,
            max_seq_len=length,
            embedding_dim=self.width,
            transformer_dim=self.width,
            transformer_hidden_dim=4 * self.width,
            num_layers=self.num_layers,
            dropout_prob=self.dropout_prob,
            num_head=self.width // _HEAD_DIM,
            head_dim=_HEAD_DIM,
            attn_type=attention,
            num_landmarks=self.num_landmarks if is_nystrom else None,
            conv_kernel_size=self.conv_kernel_size if is_nystrom else None,
        )

    def transformers_config(self, length: int) -> Any:
        """A NystromformerConfig, for rows of exactly `length` tokens."""
        from transformers import NystromformerConfig

        return NystromformerConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.width,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.width // _HEAD_DIM,
            intermediate_size=4 * self.width,
            max_position_embeddings=length,
            segment_means_seq_len=length,
            num_landmarks=self.num_landmarks,
            conv_kernel_size=self.conv_kernel_size,
            hidden_dropout_prob=self.dropout_prob,
            # Its Nyström path has no dropout of attention probabilities; ours has none either.
            attention_probs_dropout_prob=0.0,
            pad_token_id=_PAD,
        )


def common_settings(
    layers: int, width: int, vocab_size: int, precision: str, repeats: int, threads: int
) -> dict[str, Any]:
    """What flags say of the model and of the measurement, by the names that settings have for it.

    Raises:
        UserError: an unknown precision.
    """
    if precision not in ("float32", "bf16", "fp16"):
        raise UserError(f"--precision: expected float32, bf16 or fp16, found {precision!r}")
    return {
        "num_layers": layers,
        "width": width,
        "vocab_size": vocab_size,
        "mixed_precision": False if precision == "float32" else precision,
        "repeats": repeats,
        "threads": threads,
    }


def standing_memory(model: nn.Module) -> float:
    """MiB of weights and Adam's two moments; the gradients come and go within the step."""
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20


def step_memory(model: nn.Module, step: Work) -> float:
    """MiB at the peak of a step, weights and optimizer included."""
    model.zero_grad(set_to_none=True)  # what a step makes anew is the step's
    return standing_memory(model) + peak_memory(step)


def made_up_batch(
    vocab_size: int, length: int, rows: int, device: torch.device, padded: bool = False
) -> dict[str, Tensor]:
    """Random tokens, as many masked positions a row as in pretraining; labels for ours and for transformers'.

    Args:
        padded: whether rows end in padding, as whole sentences leave it, and the batch has a mask, `mask_BN`.
    """
    lengths = lengths_of_sentences(length, rows) if padded else [length] * rows
    keep_BN = torch.arange(length) < torch.tensor(lengths)[:, None]
    tokens_BN = torch.randint(5, vocab_size - 1, (rows, length)).where(keep_BN, _PAD)
    positions_BK = torch.zeros(rows, predictions_per_row(length, _MASK_PROB), dtype=torch.int64)
    labels_BK, labels_BN = torch.full_like(positions_BK, IGNORED_LABEL), torch.full_like(tokens_BN, IGNORED_LABEL)
    for row, valid in enumerate(lengths):
        count = predictions_per_row(valid, _MASK_PROB)
        chosen = torch.randperm(valid)[:count].sort().values
        positions_BK[row, :count] = chosen
        labels_BK[row, :count] = labels_BN[row, chosen] = tokens_BN[row, chosen]
    batch = {"tokens_BN": tokens_BN, "positions_BK": positions_BK, "labels_BK": labels_BK, "labels_BN": labels_BN}
    if padded:
        batch["mask_BN"] = keep_BN
    return {name: tensor.to(device) for name, tensor in batch.items()}


def lengths_of_sentences(length: int, rows: int) -> list[int]:
    """Tokens of rows that end with a sentence: 80 to 100 % of the length, 96 % on average, the fullest first."""
    # Of numbers from 0 to 1 the fourth power is a fifth on average: 1 - u⁴/5, its mean in each row's share of them.
    powers = [(row / rows) ** 5 for row in range(rows + 1)]
    return [round(length * (1 - rows * (after - before) / 25)) for before, after in pairwise(powers)]


def masked_lm_step(model: PretrainingModel, batch: Mapping[str, Tensor], device: Device) -> Work:
    """A step of ours on a batch, with its mask where it has one: forward, backward, clipping, fused AdamW."""
    optimizer = adamw(model)

    def loss() -> Tensor:
        out = model(batch["tokens_BN"], batch["positions_BK"], batch.get("mask_BN"), labels_BK=batch["labels_BK"])
        assert out.mlm_sums is not None, "labels were given"
        mean: Tensor = out.mlm_sums[0] / out.mlm_sums[2].detach()
        return mean

    return lambda: take_step(loss, model, optimizer, device)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)


def take_step(loss: Callable[[], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer, device: Device) -> None:
    """One step of training on what the loss is computed from."""
    optimizer.zero_grad(set_to_none=True)
    with device.autocast():
        value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
