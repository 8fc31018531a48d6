"""What one token of 100,000 attends to: a row of a matrix of ten billion weights, which is never formed.

`python examples/far_sight.py [TOKENS] [PICTURE.png]`.

Shapes: (batch, heads, tokens, head_dim).
"""

import sys
import time

import torch

from nystromformer.attention import create_attention


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    torch.manual_seed(0)
    attention = create_attention("nystrom", num_heads=2, head_dim=64, num_landmarks=64)
    # Neighbours are alike, as in text: what is near a token's own meaning is near it.
    q = torch.randn(1, 2, count, 64).cumsum(2) / torch.arange(1, count + 1).sqrt()[:, None]
    began = time.perf_counter()
    weights_HN = attention.weights(q, q, queries=[0])[0, :, 0]
    seconds = time.perf_counter() - began
    print(f"the first of {count:,} tokens in {seconds:.1f} s; weights sum to {weights_HN.sum(1).tolist()}")
    heaviest = weights_HN.mean(0).topk(5)
    for weight, token in zip(heaviest.values.tolist(), heaviest.indices.tolist(), strict=True):
        print(f"token {token:,}: {100 * weight:.4f} %")
    if len(sys.argv) > 2:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9, 2.5), layout="constrained")
        axes = figure.add_subplot()
        for head, row_N in enumerate(weights_HN):
            axes.plot(row_N.numpy(), linewidth=0.5, label=f"head {head}")
        axes.set(xlabel="token", ylabel="weight")
        axes.legend(fontsize=8)
        figure.savefig(sys.argv[2], dpi=120)
        print(f"picture: {sys.argv[2]}")


if __name__ == "__main__":
    main()
