"""Tries `attn_implementation="nystrom"` on a tiny random model of each family of transformers' encoders.

`python experiments/studies/home_families.py` writes families.json and families.md in results/home. Nyström attention
has more landmarks here than any row has tokens, with which it is exact: a model in which it works gives what the model
gives without it. Batches of one and two rows, with padding in families that take a mask.

Shapes: B batch, N tokens.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModel, PreTrainedModel

from nystromformer import studies
from nystromformer.files.writing import write_json
from nystromformer.interop.drop_in import register
from nystromformer.interop.drop_in.calls import Call
from nystromformer.interop.drop_in.names import REGISTERED
from nystromformer.machine import machine_facts
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "home"
NAME, LANDMARKS, TOKENS, TOLERANCE = "nystrom", 512, 24, 1e-4
STATES = {
    "works": "its layers run the registered attention; those with a sliding window keep their own",
    "refuses": "an error at the first forward pass says why",
    "ignores": "its own attention runs, with the padding mask, and the log says so after the first forward pass",
    "fails": "transformers raises `KeyError: 'nystrom'` when the model is built",
    "wrong": "another result, or its own attention, and nothing is said",
}
TEXT = (
    *("albert", "bert", "bert-generation", "big_bird", "bros", "camembert", "canine", "convbert", "data2vec-text"),
    *("deberta", "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "fnet", "ibert"),
    *("jina_embeddings_v3", "layoutlm", "lilt", "longformer", "luke", "markuplm", "megatron-bert", "mobilebert"),
    *("modernbert", "mpnet", "mra", "nomic_bert", "nystromformer", "rembert", "roberta", "roberta-prelayernorm"),
    *("roc_bert", "roformer", "splinter", "squeezebert", "tapas", "visual_bert", "xlm", "xlm-roberta"),
    *("xlm-roberta-xl", "xlnet", "xmod", "yoso", "gpt2", "llama"),
)
IMAGES = (
    *("beit", "clip_vision_model", "data2vec-vision", "deit", "dinov2", "ijepa", "siglip_vision_model"),
    *("swin", "timesformer", "videomae", "vit", "vit_msn", "vivit", "yolos"),
)
VIDEOS = ("timesformer", "videomae", "vivit")
SPEECH = (
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-conformer"),
    "wavlm",
)
FAMILIES = (*TEXT, *IMAGES, *SPEECH)
_SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "emb_dim", "embedding_size", "n_embd"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_key_value_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_inner"), 48),
    "vocab_size": 60,
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
    "bros": {"hidden_size": 64, "num_attention_heads": 4},
    "esm": {"vocab_size": 60, "pad_token_id": 0, "mask_token_id": 3},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4},
    "swin": {"patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "yolos": {"image_size": [32, 32]},
}


def build(family: str, attention: str | None) -> PreTrainedModel:
    """A model in evaluation, the same weights for the same family."""
    default = AutoConfig.for_model(family)
    sizes = {key: value for key, value in _SIZES.items() if isinstance(getattr(default, key, None), int | float)}
    config = AutoConfig.for_model(family, **{**sizes, **_OWN_SIZES.get(family, {})})
    torch.manual_seed(0)
    options = {} if attention is None else {"attn_implementation": attention}
    model: PreTrainedModel = AutoModel.from_config(config, **options)
    return model.eval()


def batch(family: str, rows: int) -> dict[str, Tensor]:
    """Inputs; of two rows the last is full."""
    generator = torch.Generator().manual_seed(rows)
    if family in IMAGES:
        frames = (4,) if family in VIDEOS else ()
        return {"pixel_values": torch.randn(rows, *frames, 3, 32, 32, generator=generator)}
    lengths_B1 = torch.tensor([[TOKENS - 7], [TOKENS]])[:rows]
    if family in SPEECH:
        mask_BN = (torch.arange(TOKENS * 40) < lengths_B1 * 40).long()
        return {"input_values": torch.randn(mask_BN.shape, generator=generator), "attention_mask": mask_BN}
    mask_BN = (torch.arange(TOKENS) < lengths_B1).long()
    inputs = {
        "input_ids": torch.randint(2, 60, mask_BN.shape, generator=generator) * mask_BN,
        "attention_mask": mask_BN,
    }
    if family == "bros":
        inputs["bbox"] = torch.rand(*mask_BN.shape, 4, generator=generator)
    return inputs


def valid(model: PreTrainedModel, inputs: dict[str, Tensor], out: Tensor) -> Tensor:
    """The output's vectors that have a meaning."""
    if "attention_mask" not in inputs:
        return out
    lengths_B = inputs["attention_mask"].sum(1)
    if "input_values" in inputs:
        lengths_B = model._get_feat_extract_output_lengths(lengths_B)
    return out[torch.arange(out.shape[1]) < lengths_B[:, None]]


@contextmanager
def record_log() -> Iterator[list[str]]:
    """What the package's log says meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("nystromformer")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def attempt(family: str, rows: int) -> dict[str, Any]:
    """What one forward gives."""
    inputs, calls = batch(family, rows), list[Call]()
    own = build(family, None)
    expected = valid(own, inputs, own(**inputs)[0])
    REGISTERED[NAME].observers[:] = [calls.append]
    with record_log() as said:
        try:
            model = build(family, NAME)
            found = valid(model, inputs, model(**inputs)[0])
        except Exception as error:
            refuses = isinstance(error, ValueError) and f'attn_implementation="{NAME}"' in str(error)
            kind = "" if refuses else f"{type(error).__name__}: "
            return {"state": "refuses" if refuses else "fails", "said": [f"{kind}{error}".splitlines()[0]]}
    layers = len({call.module for call in calls if call.attention is not None})
    difference = float((found - expected).norm() / expected.norm())
    state = "works" if layers else "ignores"
    if not difference <= TOLERANCE or (state == "ignores" and not said):
        state = "wrong"
    return {"state": state, "said": said, "layers": layers, "difference": difference}


def run() -> None:
    """Try all families, and write families.json and families.md."""
    transformers.logging.set_verbosity_error()
    register(num_landmarks=LANDMARKS)
    rows = []
    with torch.no_grad():
        for family in FAMILIES:
            attempts = {f"batch of {size}": attempt(family, size) for size in (1, 2)}
            states = {each["state"] for each in attempts.values()}
            rows.append({"family": family, "state": states.pop() if len(states) == 1 else "wrong", **attempts})
    command = "python experiments/studies/home_families.py"
    facts = machine_facts() | {"transformers": transformers.__version__}
    write_json(RESULTS / "families.json", {"machine": facts, "command": command, "rows": rows})
    studies.write_page(RESULTS / "families.md", table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """The families of each state."""
    found = {state: [row["family"] for row in rows if row["state"] == state] for state in STATES}
    lines = [[state, STATES[state], ", ".join(names)] for state, names in found.items() if names]
    return markdown(["", "what happens", "families"], lines)


if __name__ == "__main__":
    studies.run_commands(run)
