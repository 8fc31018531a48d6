"""Models of transformers with random weights, small enough for tests.

Shapes: B batch, N tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    ViTConfig,
)

VOCABULARY, PAD, WINDOW = 60, 0, 8
# Large weights: with BERT's own every softmax is all but uniform, and any attention is near it.
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, "pad_token_id": PAD, "initializer_range": 0.3}


def _modernbert() -> PreTrainedConfig:
    """Layers 0 and 3 see the whole row; the others have windows."""
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    sizes = {**_SIZES, **_TEXT, "num_hidden_layers": 4}
    return ModernBertConfig(**sizes, **special, local_attention=WINDOW, global_attn_every_n_layers=3)


def _distilbert() -> PreTrainedConfig:
    return DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=48, **_TEXT)


CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert": lambda: BertConfig(**_SIZES, **_TEXT),
    "roberta": lambda: RobertaConfig(**_SIZES, **_TEXT),
    "distilbert": _distilbert,
    "modernbert": _modernbert,
    "vit": lambda: ViTConfig(**_SIZES, image_size=24, patch_size=8, initializer_range=0.3),
}
LAYERS = {"bert": 2, "roberta": 2, "distilbert": 2, "modernbert": 2, "vit": 2}
"""Those without a window."""
TEXTS = tuple(name for name in CONFIGS if name != "vit")


def build(name: str, attention: str, **changes: Any) -> PreTrainedModel:
    """A model in evaluation, the same weights for the same name."""
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModel.from_config(config, attn_implementation=attention)
    return model.eval()


def batch(name: str, length: int = 10, image: int = 24) -> tuple[dict[str, Tensor], Tensor]:
    """Inputs, and which tokens of the output count, (B, N)."""
    generator = torch.Generator().manual_seed(length)
    if name == "vit":
        pixels = torch.randn(2, 3, image, image, generator=generator)
        return {"pixel_values": pixels}, torch.ones(2, (image // 8) ** 2 + 1, dtype=torch.bool)
    keep_BN = torch.arange(length) < torch.tensor([[length], [length // 2], [1]])
    ids_BN = torch.randint(2, VOCABULARY, keep_BN.shape, generator=generator) * keep_BN
    return {"input_ids": ids_BN, "attention_mask": keep_BN.long()}, keep_BN


def hidden(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """(B, N, E)."""
    out: Tensor = model(**inputs).last_hidden_state
    return out
