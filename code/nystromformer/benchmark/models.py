"""The model that benchmarks of whole steps train, ours and transformers'."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from nystromformer.config import ModelConfig

_HEAD_DIM = 64


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
