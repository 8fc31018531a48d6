"""Memory of a training step by the number of layers: plain, reversible, and with the feed-forward in chunks.

`python experiments/studies/reversible.py run` measures, and writes results/reversible; `collect` writes its
table again.
"""

from typing import Any

import torch

from nystromformer import studies
from nystromformer.benchmark.timing import peak_memory
from nystromformer.config import ModelConfig
from nystromformer.model import Encoder
from nystromformer.tables import markdown

RESULTS = studies.RESULTS / "reversible"
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


def memory_of(attention: str, way: str, layers: int) -> dict[str, Any]:
    """The most that tensors take at once in a forward and a backward pass, beyond weights and input, in MiB."""
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
    mebibytes = peak_memory(lambda: encoder(tokens_BN).square().mean().backward())
    return {"attention": attention, "way": way, "layers": layers, "mebibytes": mebibytes}


def run() -> None:
    """Measure, and write memory.json and memory.md."""
    rows = [memory_of(attention, way, layers) for attention in ATTENTIONS for way in WAYS for layers in LAYERS]
    shape = {"rows": ROWS, "tokens": LENGTH, "width": WIDTH, "precision": "float32"}
    studies.write_figures(RESULTS / "memory.json", encoder=shape, rows=rows)
    collect()


def collect() -> None:
    """Write memory.md."""
    data = studies.read_json(RESULTS / "memory.json")
    lines: dict[tuple[str, str], list[str]] = {}
    for row in data["rows"]:
        lines.setdefault((row["attention"], row["way"]), []).append(f"{row['mebibytes']:.0f}")
    table = markdown(["attention", "MiB with layers:", *map(str, LAYERS)], [[*key, *one] for key, one in lines.items()])
    conditions = ", ".join(f"{key} {value}" for key, value in (data["encoder"] | data["machine"]).items())
    studies.write_page(RESULTS / "memory.md", table, f"{conditions}.")


if __name__ == "__main__":
    studies.run_commands(run, collect)
