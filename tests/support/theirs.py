"""Models of transformers with random weights, small enough for tests.

Shapes: B batch, N tokens.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

VOCABULARY = 60
TEXTS = ("bert", "roberta", "distilbert", "modernbert")
FAMILIES = (*TEXTS, "vit")
SPEECH = (
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer"),
    "wavlm",
)
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "emb_dim", "embedding_size", "n_embd"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_inner"), 48),
    "vocab_size": VOCABULARY,
    "image_size": 32,
    "patch_size": 8,
    "num_frames": 4,
    "initializer_range": 0.3,
    **dict.fromkeys(("pad_token_id", "pad_index"), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1),
}
"""By all the names that families have for them. Large weights: with small ones all tokens get alike attention."""

_SPEECH: dict[str, Any] = {
    "conv_dim": (16, 16),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
}
_OWN_SIZES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(SPEECH, _SPEECH),
    "eurobert": {"num_key_value_heads": 2},
    "modernbert": {"num_hidden_layers": 4, "local_attention": 8, "global_attn_every_n_layers": 3},
    "bros": {"hidden_size": 64, "num_attention_heads": 4},
    "esm": {"vocab_size": 60, "pad_token_id": 0, "mask_token_id": 3},
    "luke": {"entity_vocab_size": 60, "entity_emb_size": 32},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4},
    "swin": {"patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yolos": {"image_size": [32, 32]},
}


def build(family: str, attention: str | None = None, **changes: Any) -> PreTrainedModel:
    """A model in evaluation, the same weights for the same family; without an attention, with its own."""
    default = AutoConfig.for_model(family)
    sizes = {key: value for key, value in _SIZES.items() if isinstance(getattr(default, key, None), int | float)}
    config = AutoConfig.for_model(family, **{**sizes, **_OWN_SIZES.get(family, {}), **changes})
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    model: PreTrainedModel = AutoModel.from_config(config, **options)
    return model.eval()


def batch(name: str, length: int = 10, image: int = 32) -> tuple[dict[str, Tensor], Tensor]:
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
