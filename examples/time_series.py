"""A classifier of long series: an encoder over embeddings of one's own, trained for a minute on made-up data.

Each series is noise with a bump in each of two values, somewhere; its class is which of the two comes first, often
hundreds of steps before the other. `python examples/time_series.py [STEPS]`.

Shapes: B series, N steps, V values, E width.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer.nn import Encoder

LENGTH, VALUES, WIDTH, BATCH = 1024, 3, 32, 16
"""The last value is the time."""


class Classifier(nn.Module):
    """Values to steps' vectors, an encoder of Nyström attention, the highest of all valid steps, two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(VALUES, WIDTH)
        self.encoder = Encoder(WIDTH, depth=2, heads=2, num_landmarks=32, conv_kernel_size=9)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, series_BNV: Tensor, mask_BN: Tensor) -> Tensor:
        hidden_BNE = self.encoder(self.embed(series_BNV), mask_BN)
        pooled_BE = hidden_BNE.masked_fill(~mask_BN[:, :, None], float("-inf")).amax(1)
        logits_B2: Tensor = self.head(pooled_BE)
        return logits_B2


def made_up(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Series, which of their steps are valid, and their classes."""
    series_BNV = 0.1 * torch.randn(BATCH, LENGTH, VALUES, generator=generator)
    lengths_B = torch.randint(LENGTH // 2, LENGTH + 1, (BATCH,), generator=generator)
    series_BNV[..., -1] = torch.linspace(-1, 1, LENGTH)
    rows, begins = torch.arange(BATCH), []
    for bump in (0, 1):
        begins.append((torch.rand(BATCH, generator=generator) * (lengths_B - 8)).long())
        for step in range(8):
            series_BNV[rows, begins[bump] + step, bump] += 2
    return series_BNV, torch.arange(LENGTH) < lengths_B[:, None], (begins[0] < begins[1]).long()


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    right: list[float] = []
    for step in range(1, steps + 1):
        series, mask, classes = made_up(generator)
        logits = model(series, mask)
        loss = F.cross_entropy(logits, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = [*right, float((logits.argmax(1) == classes).float().mean())][-50:]
        if step % 50 == 0 or step == steps:
            share = 100 * sum(right) / len(right)
            print(f"step {step}: loss {loss.item():.3f}, {share:.0f} % of the last {len(right)} batches right")


if __name__ == "__main__":
    main()
