"""What the drawn paths can teach a network that is built for pictures: a small convolutional one, after each pass over
them. It tells whether labels follow from the pictures at all, and how many of these it takes.

`python experiments/studies/lra_paths.py` writes results/lra/paths.json, after the stage `prepared` of
experiments/studies/lra.py; one thread, a quarter of an hour.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nystromformer import studies
from nystromformer.tasks.lra.store import Stored, open_stored

BATCH, RATE, SEED = 32, 1e-3, 0
FILTERS = ((32, 1), (32, 2), (64, 1), (64, 2), (128, 2))
"""Of each convolution of 3 x 3 pixels: how many, and their stride."""
SIDE = 32


def build_network() -> nn.Sequential:
    layers: list[nn.Module] = []
    before, side = 1, SIDE
    for count, stride in FILTERS:
        layers += [nn.Conv2d(before, count, 3, stride, padding=1), nn.BatchNorm2d(count), nn.ReLU()]
        before, side = count, side // stride
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side * side, 64), nn.ReLU(), nn.Linear(64, 2))


def read_pictures(stored: Stored, split: str) -> tuple[Tensor, Tensor]:
    examples = stored.split(split)
    levels = np.stack([examples.tokens(number) for number in range(len(examples))]).reshape(-1, 1, SIDE, SIDE)
    return torch.from_numpy(levels), torch.from_numpy(examples.labels)


def scale(levels: Tensor) -> Tensor:
    return levels.float() / 255 - 0.05


@torch.no_grad()
def accuracy(model: nn.Module, levels: Tensor, labels: Tensor) -> float:
    model.eval()
    chosen = torch.cat([model(scale(part)).argmax(1) for part in levels.split(500)])
    model.train()
    return float((chosen == labels).double().mean())


def run(data: Path = Path("runs/lra/data/pathfinder-6"), passes: int = 6) -> None:
    """Train, and write paths.json."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    stored = open_stored(data, "pathfinder")
    levels, labels = read_pictures(stored, "train")
    held_out, test = read_pictures(stored, "validation"), read_pictures(stored, "test")
    model = build_network()
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    history: list[dict[str, Any]] = []
    for passed in range(1, passes + 1):
        hits = 0
        for part in torch.randperm(len(levels)).split(BATCH):
            scores = model(scale(levels[part]))
            optimizer.zero_grad()
            F.cross_entropy(scores, labels[part]).backward()
            optimizer.step()
            hits += int((scores.argmax(1) == labels[part]).sum())
        history.append({
            "pictures": passed * len(levels), "while_training": hits / len(levels),
            "validation": accuracy(model, *held_out),
        })  # fmt: skip
    counts = {"train": len(labels), "validation": len(held_out[1]), "test": len(test[1])}
    majority = max(np.bincount(test[1].numpy())) / len(test[1])
    studies.write_figures(
        studies.RESULTS / "lra" / "paths.json",
        rows=counts,
        parameters=sum(each.numel() for each in model.parameters()),
        batch_size=BATCH,
        learning_rate=RATE,
        seed=SEED,
        passes=history,
        test=accuracy(model, *test),
        majority=float(majority),
    )


if __name__ == "__main__":
    studies.run_commands(run)
