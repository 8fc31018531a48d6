"""Models that are measured: BERT-small, ours and transformers', its batches and steps.

Shapes: B rows, N tokens, K masked positions.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from nystromformer.attention import AttentionMask
from nystromformer.benchmark.flags import HEAD_DIM, LANDMARKS, BertSmall
from nystromformer.benchmark.timing import Work, peak_memory
from nystromformer.config import AttentionName, ModelConfig
from nystromformer.data.masking import IGNORED_LABEL, predictions_per_row
from nystromformer.model import Encoder, PretrainingModel
from nystromformer.model.layers import Layer
from nystromformer.training.device import Device

_TAPS = 33
_DROPOUT = 0.1
_MASK_PROB = 0.15
_PAD = 1


def our_config(
    sizes: BertSmall, length: int, attention: AttentionName = "nystrom", dropout: float = _DROPOUT
) -> ModelConfig:
    """Ours, for rows of up to `length` tokens; softmax has no convolution."""
    is_nystrom = attention == "nystrom"
    return ModelConfig(
        vocab_size=sizes.vocab_size,
        max_seq_len=length,
        embedding_dim=sizes.width,
        transformer_dim=sizes.width,
        transformer_hidden_dim=4 * sizes.width,
        num_layers=sizes.num_layers,
        dropout_prob=dropout,
        num_head=sizes.width // HEAD_DIM,
        head_dim=HEAD_DIM,
        attn_type=attention,
        num_landmarks=LANDMARKS if is_nystrom else None,
        conv_kernel_size=_TAPS if is_nystrom else None,
    )


def transformers_config(sizes: BertSmall, length: int) -> Any:
    """A NystromformerConfig, for rows of exactly `length` tokens."""
    from transformers import NystromformerConfig

    return NystromformerConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.width,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.width // HEAD_DIM,
        intermediate_size=4 * sizes.width,
        max_position_embeddings=length,
        segment_means_seq_len=length,
        num_landmarks=LANDMARKS,
        conv_kernel_size=_TAPS,
        hidden_dropout_prob=_DROPOUT,
        # Its Nyström path has no dropout of attention probabilities; ours has none either.
        attention_probs_dropout_prob=0.0,
        pad_token_id=_PAD,
    )


class _StandIn(nn.Module):
    """A peer in the place of an encoder layer's attention, which says nothing of padding to it."""

    def __init__(self, peer: nn.Module, needs: object) -> None:
        super().__init__()
        self.core, self.needs = peer, needs

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask | None) -> Tensor:
        out: Tensor = self.core(q, k, v)
        return out


def replace_attention(encoder: Encoder, peers: Iterable[nn.Module]) -> None:
    """Put a peer, which takes q, k and v, in the place of each layer's attention."""
    for layer, peer in zip(encoder.layers, peers, strict=True):
        assert isinstance(layer, Layer)
        layer.attention.core = _StandIn(peer, layer.attention.core.needs)  # type: ignore[assignment]


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
    """A step of ours on a batch, with its mask where it has one."""

    def loss() -> Tensor:
        out = model(batch["tokens_BN"], batch["positions_BK"], batch.get("mask_BN"), labels_BK=batch["labels_BK"])
        assert out.mlm_sums is not None, "labels were given"
        return mean_loss(out.mlm_sums)

    return training_step(model, loss, device)


def mean_loss(sums: Tensor) -> Tensor:
    """Of `MaskedLMHead.sums`, (3,)."""
    mean: Tensor = sums[0] / sums[2].detach()
    return mean


def training_step(model: nn.Module, loss: Callable[[], Tensor], device: Device) -> Work:
    """Steps on what the loss is computed from: forward, backward, clipping, fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with device.autocast():
            value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
