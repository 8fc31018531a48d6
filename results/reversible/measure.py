"""Memory of a training step by the number of layers: plain, reversible, and with the feed-forward in chunks.

`python results/reversible/measure.py` at the top of a clone writes `memory.json` and `memory.md` beside this file: the
most that tensors take at once in a forward and a backward pass of an encoder, beyond weights and input, in MiB.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nystromformer.benchmark.timing import peak_memory
from nystromformer.config import ModelConfig
from nystromformer.files import write_json, write_text
from nystromformer.machine import machine_facts
from nystromformer.model import Encoder
from nystromformer.tables import markdown

HERE = Path(__file__).resolve().parent
LAYERS = (2, 4, 8, 16)
ROWS, LENGTH, WIDTH = 2, 1024, 256
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {"attn_type": "nystrom", "num_landmarks": 64},
    "reformer": {"attn_type": "reformer"},
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, attention and GELU computed again": {"attention_grad_checkpointing": True, "gelu_grad_checkpointing": True},
    "reversible": {"reversible": True},
    "reversible, feed-forward 512 tokens at a time": {"reversible": True, "feed_forward_chunk": 512},
}


@dataclass(frozen=True)
class Row:
    """One measurement."""

    attention: str
    way: str
    layers: int
    mebibytes: float


def measured(attention: str, way: str, layers: int) -> Row:
    model = ModelConfig(
        vocab_size=1000,
        max_seq_len=LENGTH,
        embedding_dim=WIDTH,
        transformer_dim=WIDTH,
        transformer_hidden_dim=4 * WIDTH,
        num_layers=layers,
        num_head=4,
        head_dim=WIDTH // 4,
        dropout_prob=0.1,
        norm="pre",
        compile=False,
        **ATTENTIONS[attention],
        **WAYS[way],
    )
    torch.manual_seed(0)
    encoder = Encoder(model)
    tokens_BN = torch.randint(0, 1000, (ROWS, LENGTH))
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)  # gradients of weights are there in any step
    return Row(attention, way, layers, peak_memory(lambda: encoder(tokens_BN).square().mean().backward()))


def main() -> None:
    rows = [measured(attention, way, layers) for attention in ATTENTIONS for way in WAYS for layers in LAYERS]
    shape = {"rows": ROWS, "tokens": LENGTH, "width": WIDTH, "precision": "float32"}
    facts = machine_facts()
    write_json(HERE / "memory.json", {"machine": facts, "encoder": shape, "rows": [vars(row) for row in rows]})
    lines = [
        [attention, way, *(f"{row.mebibytes:.0f}" for row in rows if (row.attention, row.way) == (attention, way))]
        for attention in ATTENTIONS
        for way in WAYS
    ]
    table = markdown(["attention", "MiB with layers:", *map(str, LAYERS)], lines)
    said = ", ".join(f"{key} {value}" for key, value in (shape | facts).items())
    write_text(HERE / "memory.md", f"{table}\n\n{said}.\n")


if __name__ == "__main__":
    main()
