"""Models of others with random weights, stored as they store them; and the authors' forward, written again.

Shapes: B batch, N tokens, H heads, D head dim, E width, V vocabulary.
"""

import json
from pathlib import Path
from typing import Any

import authors
import torch
import torch.nn.functional as F
from small import LENGTH, SMALL, VOCABULARY, WORDS
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, BertTokenizer, PreTrainedModel

from nystromformer.data.tokenizer import save_tokenizer, train_tokenizer

SIZES: dict[str, dict[str, int]] = {
    "narrow": {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 32},
    "many heads": {"hidden_size": 24, "num_attention_heads": 6, "num_hidden_layers": 1, "intermediate_size": 20},
    "deep": {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 4, "intermediate_size": 64},
}
"""Three sizes, by transformers' keys."""
LANDMARKS = SMALL["model"]["num_landmarks"]


def tokenizer() -> Tokenizer:
    """Byte-level, as RoBERTa's, with at most VOCABULARY tokens."""
    return train_tokenizer([" ".join(WORDS)] * 3, VOCABULARY)


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Random biases and norms too, which begin as zeros and ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def nystromformer(size: str = "narrow", **changes: Any) -> PreTrainedModel:
    keys = {"max_position_embeddings": LENGTH, "segment_means_seq_len": LENGTH, "num_landmarks": LANDMARKS}
    return _random("nystromformer", size, **keys | {"conv_kernel_size": 5} | changes)


def bert(size: str = "narrow", **changes: Any) -> PreTrainedModel:
    return _random("bert", size, **{"max_position_embeddings": LENGTH} | changes)


def roberta(size: str = "narrow", **changes: Any) -> PreTrainedModel:
    keys = {"max_position_embeddings": LENGTH + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return _random("roberta", size, **keys | changes)


def distilbert(size: str = "narrow", **changes: Any) -> PreTrainedModel:
    keys = {"max_position_embeddings": LENGTH, "hidden_dim": SIZES[size]["intermediate_size"]}
    return _random("distilbert", size, **keys | changes)


def modernbert(size: str = "narrow", **changes: Any) -> PreTrainedModel:
    """Windows of 3 tokens on either side, and two bases of angles that matter at this length."""
    keys = {"max_position_embeddings": LENGTH, "local_attention": 6, "num_hidden_layers": 4}
    keys |= {f"{role}_token_id": number for number, role in enumerate(("bos", "pad", "eos", "cls", "sep"))}
    rope = {"full_attention": {"rope_theta": 900.0}, "sliding_attention": {"rope_theta": 30.0}}
    return _random("modernbert", size, **keys | {"rope_parameters": rope} | changes)


def _random(family: str, size: str, **keys: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **SIZES[size] | {"vocab_size": VOCABULARY} | keys)
    model: PreTrainedModel = AutoModelForMaskedLM.from_config(config)
    randomize(model)
    return model.eval()


def stored(model: PreTrainedModel, folder: Path, bert_tokens: bool = False) -> Path:
    """The model's folder with a tokenizer."""
    model.save_pretrained(folder)
    if bert_tokens:
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "the", "small", "reads", "##s", "."]
        BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)}).save_pretrained(folder)
    else:
        save_tokenizer(tokenizer(), folder)
    return folder


AUTHORS: dict[str, Any] = SMALL["model"] | {
    "mixed_precision": True,
    "attention_grad_checkpointing": False,
    "gelu_grad_checkpointing": False,
    "num_sen_type": 1,
    "seq_len": LENGTH,
}
"""The section "model" of a config.json of theirs."""


def authors_weights(section: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """What a checkpoint of theirs holds: random, under their names."""
    generator = torch.Generator().manual_seed(seed)
    E, T = section["embedding_dim"], section["transformer_dim"]
    inner, hidden = section["num_head"] * section["head_dim"], section["transformer_hidden_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.word_embeddings.weight": (section["vocab_size"], E),
        "model.embeddings.position_embeddings.weight": (section["max_seq_len"] + 2, E),
        "model.embeddings.token_type_embeddings.weight": (section["num_sen_type"], E),
    }
    linear = {"mlm.dense": (E, T)} | ({"model.embeddings.dense": (T, E)} if E != T else {})
    norms = {"model.embeddings.norm": T, "mlm.norm": E}
    for layer in range(section["num_layers"]):
        prefix = f"model.transformer_{layer}."
        linear |= {f"{prefix}mha.{name}": (inner, T) for name in ("W_q", "W_k", "W_v")}
        linear |= {f"{prefix}mha.ff": (T, inner), f"{prefix}ff1": (hidden, T), f"{prefix}ff2": (T, hidden)}
        norms |= {f"{prefix}norm1": T, f"{prefix}norm2": T}
        if section["attn_type"] == "nystrom" and "conv_kernel_size" in section:
            shapes[f"{prefix}mha.attn.conv.weight"] = (section["num_head"], 1, section["conv_kernel_size"], 1)
    shapes |= {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    shapes |= {f"{name}.{kind}": (width,) for name, width in norms.items() for kind in ("weight", "bias")}
    shapes["mlm.mlm_class.bias"] = (section["vocab_size"],)
    weights = {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return weights | {"mlm.mlm_class.weight": weights["model.embeddings.word_embeddings.weight"]}


def authors_folder(folder: Path, section: dict[str, Any] = AUTHORS, name: str = "cp-0003.model") -> Path:
    """Their experiment folder; returns the checkpoint in it."""
    (folder / "model").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model": section, "pretraining_setting": {}}))
    path = folder / "model" / name
    content: dict[str, Any] = {"model_state_dict": authors_weights(section)}
    if path.suffix == ".cp":
        content |= {"optimizer_state_dict": {"state": {}}, "lr_scheduler_state_dict": {}, "epoch": 3, "inst_pass": 9}
    torch.save(content, path)
    return path


def authors_logits(section: dict[str, Any], weights: dict[str, Tensor], tokens_BN: Tensor) -> Tensor:
    """Vocabulary logits (B, N, V) of their model in evaluation."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    def gelu(x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def heads(x_BNE: Tensor) -> Tensor:
        return x_BNE.view(*x_BNE.shape[:2], section["num_head"], section["head_dim"]).transpose(1, 2)

    embeddings, N = "model.embeddings", tokens_BN.shape[1]
    x = weights[f"{embeddings}.word_embeddings.weight"][tokens_BN]
    x = x + weights[f"{embeddings}.position_embeddings.weight"][2 : N + 2]
    x = x + weights[f"{embeddings}.token_type_embeddings.weight"][0]
    if f"{embeddings}.dense.weight" in weights:
        x = linear(x, f"{embeddings}.dense")
    x = norm(x, f"{embeddings}.norm")
    for layer in range(section["num_layers"]):
        prefix = f"model.transformer_{layer}."
        q, k, v = (heads(linear(x, f"{prefix}mha.W_{name}")) for name in "qkv")
        kernel, every = weights.get(f"{prefix}mha.attn.conv.weight"), torch.ones(tokens_BN.shape)
        if section["attn_type"] == "softmax":
            attended = authors.softmax(q, k, v, every)
        else:
            attended = authors.nystrom(q, k, v, every, kernel, section["num_landmarks"])
        x = norm(x + linear(attended.transpose(1, 2).flatten(2), f"{prefix}mha.ff"), f"{prefix}norm1")
        x = norm(x + linear(gelu(linear(x, f"{prefix}ff1")), f"{prefix}ff2"), f"{prefix}norm2")
    x = norm(gelu(linear(x, "mlm.dense")), "mlm.norm")
    return linear(x, "mlm.mlm_class")
