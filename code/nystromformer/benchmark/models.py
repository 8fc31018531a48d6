"""The model that benchmarks of whole steps train, ours and transformers', its batches and its steps.

Shapes: B rows, N tokens, K masked positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.benchmark.timing import Work
from nystromformer.config import ModelConfig
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.model import PretrainingModel
from nystromformer.training.settings import Device

_HEAD_DIM = 64
_MASK_PROB = 0.15


@dataclass(frozen=True)
class BertSmall:
    """Sizes of the model; by default the paper's BERT-small with RoBERTa's vocabulary."""

    vocab_size: int = 50265
    width: int = 512
    num_layers: int = 4
    num_landmarks: int = 64
    conv_kernel_size: int = 33
    dropout_prob: float = 0.1

    def config(self, length: int) -> ModelConfig:
        """Ours, for rows of up to `length` tokens."""
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
            attn_type="nystrom",
            num_landmarks=self.num_landmarks,
            conv_kernel_size=self.conv_kernel_size,
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
            pad_token_id=1,
        )


def standing_memory(model: nn.Module) -> float:
    """MiB of weights and Adam's two moments; the gradients come and go within the step."""
    return 3 * sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20


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
    """A step of ours on a batch: forward, backward, clipping, fused AdamW."""
    optimizer = adamw(model)

    def loss() -> Tensor:
        out = model(batch["tokens_BN"], batch["positions_BK"], labels_BK=batch["labels_BK"])
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
