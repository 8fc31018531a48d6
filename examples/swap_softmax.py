"""Nyström attention in a model of transformers, and how far it is from the softmax that the model was trained with.

`python examples/swap_softmax.py [MODEL]`: MODEL is a folder or a name that `AutoModel.from_pretrained` loads; without
one a small BERT with random weights stands for it.
"""

import sys

import torch
from transformers import AutoModel, BertConfig

from nystromformer.interop.drop_in import check, register


def main() -> None:
    torch.manual_seed(0)
    register(num_landmarks=64)
    if len(sys.argv) > 1:
        model = AutoModel.from_pretrained(sys.argv[1], attn_implementation="nystrom")
    else:
        config = BertConfig(hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256)
        model = AutoModel.from_config(config, attn_implementation="nystrom")
    model.eval()
    tokens = torch.randint(1000, 2000, (2, 500))
    batch = {"input_ids": tokens, "attention_mask": torch.arange(500) < torch.tensor([[500], [180]])}
    for layer, error in check(model, batch).items():
        print(f"{layer}: {error:.1%}")


if __name__ == "__main__":
    main()
